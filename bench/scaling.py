"""Time and memory of the main methods against rows, weights, classes and processes, beside what they cannot go below.

Each curve is measured in a process of its own with one thread. Seconds are those of the processor, which other work on
the machine enters little; memory is the highest resident size during the work less that before it, by the kernel's
count. The floor of a network's method is the floating-point operations that its formulas ask for, counted by hand
(`bench.floors`), at the speed of a plain matrix product in the same process, right before and after; that of a
table on disk is one reading of the file by pyarrow alone.

    python -m bench.scaling [--quick] [--only rows|weights|classes|ranks] [--draw]
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

import bayescope as bs
from bayescope.tables.dataset import TableDataset
from bench import record
from bench.floors import Shape, floor_of
from bench.scaling_report import draw, written
from bench.turns import fastest

PICTURES = Path(__file__).parents[1] / "docs" / "images"
FEATURES, RANK, COLUMNS, BATCH = 64, 20, 20, 256
# Of a plain matrix product whose speed is the machine's.
SIDE = 768
# Work that took longer is not done a second time.
LONG = 4.0
FORK = multiprocessing.get_context("fork")


@dataclass
class Point:
    """What one run took.

    Attributes:
        axis: what varies: "rows", "weights", "classes" or "ranks".
        method: what was run.
        size: the number that varies.
        cpu: seconds of the processor; of several processes, the longest.
        seconds: of the clock.
        memory: bytes; of several processes, the most.
        floor: seconds that the operations take at least.
        floor_memory: bytes that the answer holds at least.
        facts: what else was counted.
    """

    axis: str
    method: str
    size: int
    cpu: float
    seconds: float
    memory: float
    floor: float
    floor_memory: float
    facts: dict[str, float] = field(default_factory=dict)


# --- what is run ------------------------------------------------------------------------------------------------------


def network(shape: Shape) -> nn.Sequential:
    """Two hidden layers, from a seed."""
    torch.manual_seed(0)  # noqa: TID251 - a process of its own
    width = shape.width
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, shape.classes)
    )  # fmt: skip


def data(shape: Shape) -> tuple[Tensor, Tensor]:
    """Rows for it."""
    source = torch.Generator().manual_seed(1)
    return torch.randn(shape.rows, FEATURES, generator=source), torch.randint(
        shape.classes, (shape.rows,), generator=source
    )


def laplace(shape: Shape, **options: Any) -> Callable[[], object]:
    """Laplace with its log evidence: what `bs.laplace` reads, and the determinant."""
    model, rows = network(shape), data(shape)
    return lambda: bs.laplace(model, rows, likelihood="categorical", **options).log_evidence()


def training_pass(shape: Shape) -> Callable[[], object]:
    """Forward and backward over the rows in minibatches: an epoch without its optimiser."""
    model, (x, y) = network(shape), data(shape)

    def epoch() -> None:
        for start in range(0, shape.rows, BATCH):
            output = model(x[start : start + BATCH])
            nn.functional.cross_entropy(output, y[start : start + BATCH]).backward()
        model.zero_grad()

    return epoch


def variational(shape: Shape) -> Callable[[], object]:
    """Epochs of mean-field VI."""
    model, rows = network(shape), data(shape)
    options = {"likelihood": "categorical", "batch_size": BATCH, "generator": 0, "epochs": 5}
    return lambda: bs.variational(model, rows, **options)


def prediction(shape: Shape) -> Callable[[], object]:
    """Linearised predictions of the rows by a Kronecker posterior that was fitted to a few."""
    x, y = data(shape)
    q = bs.laplace(network(shape), (x[:64], y[:64]), likelihood="categorical")
    q.predict(x[:64])
    return lambda: q.predict(x)


METHODS: dict[str, Callable[[Shape], Callable[[], object]]] = {
    "forward + backward": training_pass,
    "diagonal": lambda shape: laplace(shape, structure="diagonal"),
    "Kronecker": lambda shape: laplace(shape, structure="kfac"),
    "Kronecker, diagonal outputs": lambda shape: laplace(shape, structure="kfac", output_factor="diagonal"),
    "last layer": lambda shape: laplace(shape, structure="kfac", weights="last_layer"),
    "low rank": lambda shape: laplace(shape, structure="low_rank", rank=RANK, generator=0),
    "full": lambda shape: laplace(shape, structure="full"),
    "VI, 5 epochs": variational,
    "prediction": prediction,
}


@dataclass(frozen=True)
class Sweep:
    """A method along an axis.

    Attributes:
        axis: what varies.
        method: a name in `METHODS`.
        shapes: from small to large.
    """

    axis: str
    method: str
    shapes: Sequence[Shape]


def sweeps(quick: bool) -> list[Sweep]:
    """All sweeps of networks; a method goes as far as seconds reach."""
    rows, widths, classes = [1024, 4096, 16_384, 65_536], [16, 64, 256, 1024], [10, 30, 100, 300, 1000]
    found = []
    for method in METHODS:
        slow = method in ("full", "low rank")
        if "outputs" not in method:
            sizes = [256, 512, 1024] if slow else rows[: 3 if quick else 4]
            found.append(Sweep("rows", method, [Shape(n, FEATURES, 32, 10) for n in sizes]))
            sizes = [8, 16, 32] if slow else widths[: 3 if quick else 4]
            found.append(Sweep("weights", method, [Shape(256, FEATURES, width, 10) for width in sizes]))
        if not slow and not method.startswith("VI"):
            sizes = classes[: 3 if quick else 4 if method == "prediction" else 5]  # covariances are C×C numbers a row
            found.append(Sweep("classes", method, [Shape(128, FEATURES, 64, c) for c in sizes]))
    return found


# --- how it is measured -----------------------------------------------------------------------------------------------


def status(name: str) -> int:
    """A number of bytes from the kernel's account of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(name)


@contextmanager
def tidy() -> Iterator[None]:
    """Gives back to the system what was freed, so that it hides nothing of what is measured next."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size begins anew
    yield


def timed(work: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds of the processor and of the clock, and bytes above those before; the least of two runs unless long."""
    found = []
    for _ in range(2):
        with tidy():
            before, cpu, clock = status("VmRSS"), time.process_time(), time.perf_counter()
            work()
            took = time.process_time() - cpu, time.perf_counter() - clock
            found.append((*took, float(status("VmHWM") - before)))
        if took[0] > LONG:
            break
    cpu, clock, memory = (min(values) for values in zip(*found, strict=True))
    return cpu, clock, memory


def matmul_speed(dtype: torch.dtype = torch.float32) -> float:
    """Floating-point operations in a second of the processor, of a plain matrix product."""
    a = torch.ones(SIDE, SIDE, dtype=dtype)
    return 2.0 * SIDE**3 / fastest(lambda: a @ a, time.process_time)


def swept(sweep: Sweep) -> list[Point]:
    """Measures a sweep."""
    METHODS[sweep.method](Shape(8, FEATURES, 8, sweep.shapes[0].classes))()  # imports, and the libraries' own memory
    points = []
    for shape in sweep.shapes:
        work = METHODS[sweep.method](shape)
        floor = floor_of(sweep.method, shape.rows, shape.layers, rank=RANK)
        before = matmul_speed()
        cpu, clock, memory = timed(work)
        speed = max(before, matmul_speed())
        size = {"rows": shape.rows, "weights": shape.weights, "classes": shape.classes}[sweep.axis]
        facts = {"flops": floor.flops, "matmul_gflops": speed / 1e9, **asdict(shape), "weights": shape.weights}
        points.append(
            Point(sweep.axis, sweep.method, size, cpu, clock, memory, floor.flops / speed, floor.memory, facts)
        )
    return points


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own."""
    return in_processes(1, function, *arguments)[0]


def in_processes(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What it returns in each of several, which are one group of torch.distributed where they are several."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [FORK.Pipe(duplex=False) for _ in range(count)]
        started = [
            FORK.Process(target=_child, args=(pipe[1], rank, count, f"file://{folder}/group", function, arguments))
            for rank, pipe in enumerate(pipes)
        ]
        for process in started:
            process.start()
        for _, sender in pipes:
            sender.close()
        answers = [receiver.recv() for receiver, _ in pipes]
        for process in started:
            process.join()
    for answer in answers:
        if isinstance(answer, str):
            raise RuntimeError(answer)
    return answers


def _child(pipe: Any, rank: int, count: int, place: str, function: Callable[..., Any], arguments: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        if count > 1:
            distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=count)
        pipe.send(function(*arguments))
        if count > 1:
            distributed.destroy_process_group()
    except BaseException:  # noqa: BLE001 - the parent raises it
        pipe.send(traceback.format_exc())


# --- tables on disk ---------------------------------------------------------------------------------------------------


def write_table(path: Path, rows: int) -> None:
    """A Parquet file of 20 columns of numbers and a target of two classes, in row groups of 65,536."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, writer = np.random.default_rng(0), None
    for start in range(0, rows, 65_536):
        x = source.standard_normal((min(65_536, rows - start), COLUMNS))
        y = (x[:, 0] - 0.5 * x[:, 1] + source.logistic(size=len(x)) > 0).astype(np.int64)
        table = pa.table({**{f"x{j}": x[:, j] for j in range(COLUMNS)}, "y": y})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def reading(path: Path) -> tuple[float, float, float]:
    """One reading of a file by pyarrow alone."""
    import pyarrow.dataset as ds

    def work() -> None:
        for batch in ds.dataset(path).to_batches(batch_size=65_536, batch_readahead=1, fragment_readahead=1):
            _ = batch.num_rows

    return timed(work)


def logistic(path: Path) -> Callable[[], object]:
    """Laplace's logistic regression of a table on disk."""
    return lambda: bs.BayesianLogisticRegression(standardize=True).fit(bs.open_table(path), "y")


def additive(path: Path) -> Callable[[], object]:
    """An additive model of a table on disk."""
    options: dict[str, Any] = {"hidden": 8, "epochs": 8, "random_state": 0}
    return lambda: bs.NeuralAdditiveClassifier(**options).fit(bs.open_table(path), "y")


TABLES: dict[str, Callable[[Path], Callable[[], object]]] = {
    "logistic regression, on disk": logistic,
    "additive model, on disk": additive,
}


def fitted_table(make: Callable[[Path], Callable[[], object]], warm: Path, path: Path) -> tuple[Any, Any, int]:
    """A fit of a table on disk, a plain reading of it, and how often the fit read it."""
    passes, blocks = [0], TableDataset.blocks

    def counted(*arguments: Any, **options: Any) -> Any:
        passes[0] += 1
        return blocks(*arguments, **options)

    def work() -> None:
        passes[0] = 0
        fit()

    make(warm)()
    fit, TableDataset.blocks = make(path), counted  # type: ignore[method-assign]
    return timed(work), reading(path), passes[0]


def table_points(folder: Path, quick: bool) -> list[Point]:
    """Fits of tables against their rows."""
    points, warm = [], folder / "warm.parquet"
    in_process(write_table, warm, 2_000)
    for rows in [30_000, 100_000, 300_000] if quick else [100_000, 300_000, 1_000_000]:
        path = folder / f"{rows}.parquet"
        in_process(write_table, path, rows)
        for name, make in TABLES.items():
            if name.startswith("additive") and rows > 100_000:
                continue
            (cpu, clock, memory), (floor, _, _), passes = in_process(fitted_table, make, warm, path)
            facts = {"bytes": float(path.stat().st_size), "readings": cpu / floor, "passes": float(passes)}
            blocks = 2.0 * 65_536 * (COLUMNS + 1) * 8
            points.append(Point("rows", name, rows, cpu, clock, memory, floor, blocks, facts))
    return points


# --- processes --------------------------------------------------------------------------------------------------------


def shared_fit(make: Callable[[], Callable[[], object]]) -> tuple[float, float, float]:
    """A fit that all processes of the group make together."""
    return timed(make())


def rank_points(folder: Path, quick: bool) -> list[Point]:
    """Fits by one, two and four processes of one thread each."""
    rows = 100_000 if quick else 300_000
    path = folder / "ranks.parquet"
    in_process(write_table, path, rows)
    shape = Shape(8192 if quick else 32_768, FEATURES, 128, 10)
    works: dict[str, Callable[[], Callable[[], object]]] = {
        "logistic regression, on disk": lambda: logistic(path),
        "Kronecker": lambda: laplace(shape, structure="kfac"),
        "diagonal": lambda: laplace(shape, structure="diagonal"),
    }
    points = []
    for name, make in works.items():
        alone = 0.0
        for count in (1, 2, 4):
            took = in_processes(count, shared_fit, make)
            cpu, clock, memory = (max(values) for values in zip(*took, strict=True))
            alone = alone or cpu
            facts = {"cores": float(os.cpu_count() or 1), "cpu_sum": sum(each[0] for each in took)}
            points.append(Point("ranks", name, count, cpu, clock, memory, alone / count, 0.0, facts))
    return points


# --- all of it --------------------------------------------------------------------------------------------------------


def printed(point: Point) -> None:
    """A line about a point."""
    print(
        f"{point.axis:8} {point.method:28} {point.size:>10,}  cpu {point.cpu:8.3f} s  clock {point.seconds:8.3f} s  "
        f"floor {point.floor:8.4f} s  memory {point.memory / 1e6:8.1f} MB",
        flush=True,
    )


def measured(folder: Path, quick: bool, only: str | None, into: Path) -> None:
    """Measures all axes, or one; in the results each curve takes the place of an earlier one as soon as it is there."""
    points = record.load(into, "scaling").get("points", [])
    works: list[tuple[str, Callable[[], list[Point]]]] = [
        *((sweep.axis, partial(in_process, swept, sweep)) for sweep in sweeps(quick)),
        ("rows", lambda: table_points(folder, quick)),
        ("ranks", lambda: rank_points(folder, quick)),
    ]
    for axis, work in works:
        if only in (None, axis):
            new = work()
            for point in new:
                printed(point)
            curves = {(point.axis, point.method) for point in new}
            points = [point for point in points if (point["axis"], point["method"]) not in curves]
            points += [asdict(point) for point in new]
            found = {"made": record.partly(record.made("bench.scaling")), "points": points}
            record.save(into, "scaling", found, written(found))


def main() -> None:
    """Measures, writes and draws."""
    parser = record.arguments(__doc__)
    parser.add_argument("--only", choices=["rows", "weights", "classes", "ranks"], help="of the axes one alone")
    parser.add_argument("--draw", action="store_true", help="write the page and the pictures from the last numbers")
    options = parser.parse_args()
    into = record.folder(options)
    if not options.draw:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            measured(Path(folder), options.quick, options.only, into)
    found = record.load(into, "scaling")
    if not (options.draw or options.only):
        found["made"] = record.made("bench.scaling")
    for point in found["points"]:  # counted anew, at the speed that was measured
        facts = point["facts"]
        if "matmul_gflops" in facts:
            shape = Shape(facts["rows"], facts["features"], facts["width"], facts["classes"])
            floor = floor_of(point["method"], shape.rows, shape.layers, rank=RANK)
            point |= {"floor": floor.flops / (1e9 * facts["matmul_gflops"]), "floor_memory": floor.memory}
    record.save(into, "scaling", found, written(found))
    draw(found, into if options.quick else PICTURES)


if __name__ == "__main__":
    main()
