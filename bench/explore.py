"""How soon `bayescope explore` shows what a moved point changes: the server's work and the transfer.

The command runs as a process of its own. A client moves one of the points, asks as the page does, and notes when the
surface with its epistemic part has arrived, and when the draws of the border and the marginal posteriors have: a new
connection each time. The models are linear in their weights; a polynomial has degree 3, and 64 radial basis functions
lie on a lattice. The page's drawing is not in it.

    python -m bench.explore [--points 200] [--moves 40] [--quick]
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from urllib.parse import urlsplit

import numpy as np
from sklearn.datasets import make_moons

from bench import record

MODELS = ("linear", "polynomial", "rbf")
POSTERIORS = ("map", "laplace", "variational", "ep")
BUDGET = 150.0


@contextmanager
def served() -> Iterator[str]:
    """The address of the page while the command runs."""
    command = [sys.executable, "-u", "-m", "bayescope", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def milliseconds(url: str, question: dict[str, object]) -> dict[str, float]:
    """The time until each part of the answer has arrived."""
    place = urlsplit(url)
    begun = time.perf_counter()
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    connection.request("POST", f"{place.path}answer", json.dumps(question), {"Content-Type": "application/json"})
    reply, found = connection.getresponse(), {}
    while line := reply.readline():
        part = json.loads(line)["part"]
        found[part] = 1e3 * (time.perf_counter() - begun)
        if part == "refused":
            raise SystemExit(line.decode())
    connection.close()
    return found


def main() -> None:
    """Measures, prints and saves."""
    parser = record.arguments(__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--moves", type=int, help="40; 5 of a quick run")
    options = parser.parse_args()
    moves = options.moves or (5 if options.quick else 40)
    X, y = make_moons(options.points, noise=0.25, random_state=0)
    points = np.column_stack([X, y]).round(3).tolist()
    view = [[-2.4, 3.4], [-2.2, 2.8]]
    rows = []
    with served() as url:
        for model in MODELS:
            for posterior in POSTERIORS:
                asked = {"ask": "answer", "kind": "classes", "view": view, "moving": True}
                asked |= {"model": model, "posterior": posterior}
                times = []
                for move in range(moves + 3):
                    points[move % len(points)][0] += 0.02
                    times.append(milliseconds(url, {**asked, "points": points}))
                kept = times[3:]  # the first ones load what is imported when it is needed
                surface = [each["surface"] for each in kept]
                rows.append(
                    {
                        "model": model,
                        "posterior": posterior,
                        "surface, ms": round(median(surface)),
                        "least, ms": round(min(surface)),
                        "95 % of them within, ms": round(quantiles(surface, n=20)[-1]),
                        "with borders and marginals, ms": round(median(each["weights"] for each in kept)),
                    }
                )
    first = [row for row in rows if row["posterior"] in ("map", "laplace")]
    median_of, least = (max(float(row[name]) for row in first) for name in ("surface, ms", "least, ms"))
    verdict = (
        f"The budget is {BUDGET:.0f} ms for MAP and Laplace on {options.points} points: the slowest of them has a "
        f"median of {median_of:.0f} ms and a least of {least:.0f} ms. Other work on the machine, its load above, "
        "lengthens the medians."
    )
    how = record.method_in(__doc__) + f" {options.points} points, {moves} moves each; the medians."
    parts = ["## A moved point", record.table_of(rows, "g"), verdict]
    title = "Explore: from a moved point to its answer"
    record.publish(options, "bench.explore", title, how, parts, {"points": options.points, "rows": rows})


if __name__ == "__main__":
    main()
