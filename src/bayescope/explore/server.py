"""The server of a local page: it checks each request, sends files, and answers the latest question."""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socketserver import TCPServer
from typing import Any, final

from bayescope.errors import BayescopeError, first_line
from bayescope.progress import listening

ADDRESS = "127.0.0.1"
# What is asked, and the parts of the answer.
Question = Mapping[str, Any]
Answer = Callable[[Question], Iterator[Mapping[str, Any]]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Files by their names in the URL: the package that has them, the file and its type.
ASSETS = {
    "": ("bayescope.explore", "explore.html", "text/html; charset=utf-8"),
    "report.css": ("bayescope.report", "report.css", "text/css; charset=utf-8"),
    "explore.css": ("bayescope.explore", "explore.css", "text/css; charset=utf-8"),
    "theme.js": ("bayescope.report", "theme.js", "text/javascript; charset=utf-8"),
    "plots.js": ("bayescope.explore", "plots.js", "text/javascript; charset=utf-8"),
    "panels.js": ("bayescope.explore", "panels.js", "text/javascript; charset=utf-8"),
    "asking.js": ("bayescope.explore", "asking.js", "text/javascript; charset=utf-8"),
    "explore.js": ("bayescope.explore", "explore.js", "text/javascript; charset=utf-8"),
}
ANSWER = "answer"
# Where a request comes from, as browsers say it in Sec-Fetch-Site: this page, or a person who opened its address.
SAME = ("same-origin", "none")
MOST_BYTES = 1_000_000
# Seconds that a silent connection is kept, and between two reports of progress.
PATIENCE, PACE = 30.0, 0.1
# Seconds that the end of the server waits for the work that is under way.
LAST = 5.0


@final
class Overtaken(BaseException):
    """A newer question has come, or the server ends. It is not an `Exception`, so that no handler stops it."""


@final
class Turns:
    """One question at a time, and a newer one ends the work on the older."""

    def __init__(self) -> None:
        self._latest = 0
        self._count = threading.Lock()
        self._work = threading.Lock()

    def ask(self, answer: Answer, question: Question, send: Callable[[Mapping[str, Any]], None]) -> None:
        """Sends the parts of an answer, and between them how far slow work has come, until a newer question comes.

        Args:
            answer: makes the parts.
            question: what is asked.
            send: takes each part. What it raises ends the work.
        """
        with self._count:
            self._latest = mine = self._latest + 1
        reported, reporting = 0.0, threading.Lock()

        def go_on(done: int, steps: int | None, name: str) -> None:
            nonlocal reported
            if self._latest != mine:
                raise Overtaken
            with reporting:  # chains that run side by side call this each from a thread of its own
                if time.monotonic() - reported > PACE:
                    reported = time.monotonic()
                    try:
                        send({"part": "progress", "done": done, "steps": steps, "name": name})
                    except ConnectionError as gone:
                        raise Overtaken from gone

        try:
            with self._work, listening(go_on):
                for part in _refusing(answer, question):
                    if self._latest != mine:
                        raise Overtaken
                    send(part)
            send({"part": "end"})
        except Overtaken:
            send({"part": "overtaken"})

    def close(self, seconds: float) -> None:
        """Ends the work that is under way, and waits for that at most so long."""
        with self._count:
            self._latest += 1
        if self._work.acquire(timeout=seconds):
            self._work.release()


def _refusing(answer: Answer, question: Question) -> Iterator[Mapping[str, Any]]:
    """The parts of an answer; where it is refused, the reason is the last."""
    try:
        yield from answer(question)
    except BayescopeError as error:
        yield {"part": "refused", "message": str(error)}


@final
class Server(ThreadingHTTPServer):
    """Serves the page on this machine alone, at a URL that nobody else knows.

    Every request has to name the token in its path, this server in its Host header, and this page in its Origin header,
    if it has one: other pages that the browser shows can then neither read nor ask anything, also not under a name of
    their own that leads to this machine (DNS rebinding).

    Args:
        answer: makes the parts of an answer.
        port: where to listen, 0 for a free one.

    Raises:
        OSError: if the port is taken.
    """

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, answer: Answer, port: int = 0) -> None:
        # First of all, since a port that is taken closes the server.
        self.answer, self.turns, self.token = answer, Turns(), secrets.token_urlsafe(24)
        super().__init__((ADDRESS, port), _Handler)

    def server_bind(self) -> None:
        """Takes the port, and asks nobody for this machine's name, as the parent would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, int(self.server_address[1])

    @property
    def origin(self) -> str:
        """The scheme, the address and the port."""
        return f"http://{ADDRESS}:{self.server_port}"

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"{self.origin}/{self.token}/"

    def server_close(self) -> None:
        """Ends the work that is under way, then the server."""
        self.turns.close(LAST)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a browser that closed its connection; other errors are written to stderr."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


@final
class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = PATIENCE
    disable_nagle_algorithm = True
    server_version, sys_version = "bayescope", ""
    protocol_version = "HTTP/1.0"  # the end of an answer is the end of its connection

    def do_GET(self) -> None:
        name = self._asked()
        if name is None:
            return
        if name not in ASSETS:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such file.")
            return
        package, file, kind = ASSETS[name]
        self._begin(HTTPStatus.OK, kind)
        self.wfile.write((files(package) / "assets" / file).read_bytes())

    def do_POST(self) -> None:
        name = self._asked()
        if name is None:
            return
        if name != ANSWER:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such question.")
            return
        question = self._question()
        if question is None:
            return
        self._begin(HTTPStatus.OK, "application/x-ndjson")
        try:
            self.server.turns.ask(self.server.answer, question, self._send)
        except ConnectionError:
            pass  # the page has gone, or has asked something newer
        except Exception as error:
            self._send({"part": "refused", "message": f"bayescope failed: {first_line(error)}"})
            raise

    def _asked(self) -> str | None:
        """What is asked for below the token, or ``None`` once the request is refused."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        port = self.server.server_port
        if host not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
            self._refuse(
                HTTPStatus.FORBIDDEN,
                "Expected this server's own address in the Host header.",
            )
            return None
        if origin not in (None, f"http://{host}") or self.headers.get("Sec-Fetch-Site", "none") not in SAME:
            self._refuse(
                HTTPStatus.FORBIDDEN,
                "Expected a request from this server's own page.",
            )
            return None
        # Without the slash behind the token the page's own files would be asked for beside it.
        token, slash, name = self.path.split("?", 1)[0].removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "Open the address that `bayescope explore` printed.")
            return None
        return name

    def _question(self) -> Question | None:
        """The JSON of a request, or ``None`` once it is refused."""
        length = self.headers.get("Content-Length", "")
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Expected application/json.")
        elif not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "Expected a Content-Length.")
        elif len(length) > len(str(MOST_BYTES)) or int(length) > MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"Expected at most {MOST_BYTES} bytes.")
        else:
            try:
                question = json.loads(self.rfile.read(int(length)))
            except (ValueError, RecursionError):  # bytes that are not UTF-8 are a ValueError, too
                question = None
            if isinstance(question, dict):
                return question
            self._refuse(HTTPStatus.BAD_REQUEST, "Expected a JSON object.")
        return None

    def _send(self, part: Mapping[str, Any]) -> None:
        self.wfile.write(json.dumps(part, allow_nan=False, separators=(",", ":")).encode() + b"\n")

    def _begin(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._begin(status, "text/plain; charset=utf-8")
        self.wfile.write(f"{message}\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing: the token stands in every request's line."""
