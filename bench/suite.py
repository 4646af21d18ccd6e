"""The benchmarks there are: what each proves, how long it takes, and what its quick run is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from bench import record

Part = Literal["exactness", "faithfulness", "papers", "speed", "robustness", "limits", "guides"]


@final
@dataclass(frozen=True)
class Benchmark:
    """One of them.

    Attributes:
        module: `python -m` runs it; its results are named after the last part.
        part: which of the claims it measures.
        minutes: how long it takes on two cores, about.
        compared: whether its results hold ratios that a later run is compared with (`bench.check`).
        data: whether it reads the reference data beside the repository.
        gpu: whether it runs on a GPU where there is one, and its results are then of that one.
    """

    module: str
    part: Part
    minutes: float
    compared: bool = False
    data: bool = False
    gpu: bool = False

    @property
    def name(self) -> str:
        """What it is asked for by."""
        return self.module.removeprefix("bench.")

    @property
    def result(self) -> str:
        """The path of its results in their folder, without an ending."""
        return self.result_on(record.gpu_of(record.default_device()))

    def result_on(self, gpu: str | None) -> str:
        """The path of the results on a machine with this GPU, or with none."""
        return record.on_gpu(self.name.replace(".", "/"), gpu if self.gpu else None)


SUITE = (
    Benchmark("bench.first_answer", "faithfulness", 15, data=True),
    Benchmark("bench.agreement", "exactness", 10),
    Benchmark("bench.integrals", "exactness", 3),
    Benchmark("bench.top_classes", "exactness", 5),
    Benchmark("bench.decisions", "exactness", 3),
    Benchmark("bench.faithfulness", "faithfulness", 60),
    Benchmark("bench.linear_faithfulness", "faithfulness", 5),
    Benchmark("bench.reports", "faithfulness", 2, data=True),
    Benchmark("bench.posteriordb", "faithfulness", 5, data=True),
    Benchmark("bench.papers.uci_regression", "papers", 60, data=True),
    Benchmark("bench.papers.uci_regression_5_modes", "papers", 10, data=True),
    Benchmark("bench.papers.uci_regression_dropout", "papers", 180, data=True),
    Benchmark("bench.papers.uci_regression_variational", "papers", 90, data=True),
    Benchmark("bench.papers.uci_classification", "papers", 30, data=True),
    Benchmark("bench.papers.mnist", "papers", 30, data=True),
    Benchmark("bench.papers.additive", "papers", 180, data=True),
    Benchmark("bench.papers.additive_icu", "papers", 10),
    Benchmark("bench.active_learning", "papers", 2),
    Benchmark("bench.outcomes", "papers", 20, data=True),
    Benchmark("bench.interactions", "papers", 10),
    Benchmark("bench.curvature", "speed", 14, compared=True),
    Benchmark("bench.predict", "speed", 5, compared=True),
    Benchmark("bench.linear", "speed", 1, compared=True),
    Benchmark("bench.counts", "speed", 5, compared=True),
    Benchmark("bench.vi", "speed", 3, compared=True),
    Benchmark("bench.additive", "speed", 3, compared=True),
    Benchmark("bench.nuts", "speed", 8, compared=True),
    Benchmark("bench.laplace", "speed", 5, compared=True),
    Benchmark("bench.ensembles", "speed", 2, compared=True),
    Benchmark("bench.robustness", "robustness", 8),
    Benchmark("bench.explore", "speed", 2),
    Benchmark("bench.cli_predict", "limits", 10),
    Benchmark("bench.large_tables", "limits", 40),
    Benchmark("bench.wide_tables", "limits", 15),
    Benchmark("bench.column_order", "limits", 2),
    Benchmark("bench.large_outputs", "limits", 10),
    Benchmark("bench.large_models", "limits", 10, gpu=True),
    Benchmark("bench.gpu", "limits", 10, gpu=True),
    Benchmark("bench.scaling", "limits", 30),
    Benchmark("bench.sparse_priors", "guides", 4, data=True),
    Benchmark("bench.guides_laplace", "guides", 3),
    Benchmark("bench.guides_dropout", "guides", 2),
)
