"""The page's server: who is answered, and that a newer question ends an older one."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from importlib.resources import files

import pytest

from bayescope.errors import InputError
from bayescope.explore.server import ASSETS, MOST_BYTES, Server
from bayescope.progress import progress_bar


def echo(question):
    if question.get("slow"):
        with progress_bar("working") as report:
            for step in range(100_000):
                if "begun" in question:
                    question["begun"].set()
                report(step, 100_000, "step")
                threading.Event().wait(0.005)
    if question.get("wrong"):
        raise InputError("size: expected 1, got 2. Take 1.")
    yield {"part": "echo", "asked": question["text"]}


@pytest.fixture
def server() -> Iterator[Server]:
    serving = Server(echo)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serving
    serving.shutdown()
    thread.join()
    serving.server_close()


def ask(server, method="GET", path=None, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    path = f"/{server.token}/" if path is None else path
    given = {"Content-Type": "application/json"} if body is not None else {}
    connection.request(method, path, body, given | {name.replace("_", "-"): value for name, value in headers.items()})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply, text


def parts(text):
    return [json.loads(line) for line in text.splitlines()]


def question(server, **asked):
    return ask(server, "POST", f"/{server.token}/answer", json.dumps(asked))


def test_the_page_and_its_files_are_handed_out_with_a_strict_policy(server):
    for name in ASSETS:
        reply, text = ask(server, path=f"/{server.token}/{name}")
        assert reply.status == 200
        assert text
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Cache-Control"] == "no-store"


def test_the_page_names_no_other_place():
    for package, file, _ in ASSETS.values():
        text = (files(package) / "assets" / file).read_text(encoding="utf-8")
        assert "https://" not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("path", ["/", "/answer", "/wrong/", "/wrong/answer", "//"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_token_is_refused(server, method, path):
    reply, text = ask(server, method, path, "{}" if method == "POST" else None)
    assert reply.status == 403
    assert server.token not in text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:80", ""])
def test_another_host_is_refused(server, host):
    assert ask(server, Host=host)[0].status == 403


def test_localhost_is_this_machine(server):
    assert ask(server, Host=f"localhost:{server.server_port}")[0].status == 200


def test_another_origin_is_refused(server):
    path, port = f"/{server.token}/answer", server.server_port
    body = json.dumps({"text": "x"})
    for origin in ("null", "http://evil.example", f"https://127.0.0.1:{port}", f"http://localhost:{port}"):
        assert ask(server, "POST", path, body, Origin=origin)[0].status == 403
    assert ask(server, "POST", path, body, Sec_Fetch_Site="cross-site")[0].status == 403
    assert ask(server, "POST", path, body, Origin=server.origin, Sec_Fetch_Site="same-origin")[0].status == 200


def test_bodies_that_are_no_question_are_refused(server):
    path = f"/{server.token}/answer"
    assert ask(server, "POST", path, "{}", Content_Type="text/plain")[0].status == 415
    assert ask(server, "POST", path, "[1]")[0].status == 400
    assert ask(server, "POST", path, b"\xff\xfe")[0].status == 400
    assert ask(server, "POST", path, None, Content_Type="application/json")[0].status in (400, 411)
    assert ask(server, "POST", path, "[" * 100_000)[0].status == 400
    assert ask(server, "POST", path, "", Content_Length=str(MOST_BYTES + 1))[0].status == 413
    assert ask(server, "POST", path, "", Content_Length="1" * 5000)[0].status == 413
    assert ask(server, "POST", f"/{server.token}/other", "{}")[0].status == 404
    assert ask(server, path=f"/{server.token}/../server.py")[0].status == 404


def test_a_token_without_its_slash_is_refused(server):
    assert ask(server, path=f"/{server.token}")[0].status == 403  # the page's files would be asked for beside it


def test_two_servers_have_tokens_of_their_own(server):
    with Server(echo) as other:
        assert other.token != server.token
        assert len(other.token) >= 32
        assert other.server_address[0] == "127.0.0.1"


def test_a_question_is_answered_part_by_part(server):
    assert parts(question(server, text="α")[1]) == [{"part": "echo", "asked": "α"}, {"part": "end"}]


def test_a_refusal_says_why(server):
    found = parts(question(server, wrong=True, text="")[1])
    assert found[0] == {"part": "refused", "message": "size: expected 1, got 2. Take 1."}


def test_a_newer_question_ends_the_older_one(server):
    begun, found = threading.Event(), []
    server.answer = lambda asked: echo({**asked, "begun": begun})
    older = threading.Thread(target=lambda: found.extend(parts(question(server, slow=True, text="old")[1])))
    older.start()
    assert begun.wait(10)
    assert parts(question(server, text="new")[1])[0] == {"part": "echo", "asked": "new"}
    older.join(10)
    assert not older.is_alive()
    assert found[-1] == {"part": "overtaken"}
    assert {part["part"] for part in found[:-1]} == {"progress"}
    assert found[0]["steps"] == 100_000


def test_closing_ends_the_work(server):
    begun = threading.Event()
    server.answer = lambda asked: echo({**asked, "begun": begun})
    asking = threading.Thread(target=lambda: question(server, slow=True, text="old"))
    asking.start()
    assert begun.wait(10)
    server.turns.close(10.0)
    asking.join(10)
    assert not asking.is_alive()
