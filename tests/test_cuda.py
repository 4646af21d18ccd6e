"""Every public path of networks on a GPU, against the CPU in float64; without one, on a pretended GPU.

The pretended one holds torch's rules for devices over tensors of the CPU: see `tests.pretend`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import bayescope as bs
from bayescope.curvature import STRUCTURES
from tests.device_paths import EXACT, TRAINS, problem
from tests.pretend import GPU, Places, pretended

NO_GPU = not torch.cuda.is_available()
ON_GPU = pytest.mark.skipif(NO_GPU, reason="no CUDA device: the pretended one stands in")
NO_MODE = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # these weights are random
# On a pretended GPU numbers are those of the CPU; one path for each structure, kind and family of layers will do there,
# and all of them where the environment asks for that, as a job of CI does.
SOME = (
    *(f"ggn-{structure}" for structure in STRUCTURES),
    *("hessian-block", "hessian-diagonal", "fisher-kfac", "empirical_fisher-diagonal"),
    *("resnet-kfac", "tokens-kfac", "laplace-last_layer", "laplace-subnetwork", "laplace-transformer"),
    *("regression", "queries", "function_space-exact"),
)
PRETENDED = tuple(EXACT) if os.environ.get("BAYESCOPE_EVERY_PATH") else SOME
# The files of the library that may move tensors between the devices, and what for. A copy from any other one is silent.
COPIES = {
    "network/inputs": "inputs go to the network",
    "network/batches": "labels go to the network",
    "predictive/predictive": "outcomes go to the predictive",
    **dict.fromkeys(
        (
            "curvature/curvature", "curvature/hessian", "curvature/kinds", "latent/gaussian", "likelihoods/categorical",
            "likelihoods/quasi_monte_carlo", "network/draws", "network/dropout", "precision/precision",
            "private_draws/modes", "training/minibatches", "laplace/training_rows", "laplace/judgement",
            "variational/elbo",
        ),
        "numbers of the CPU's generator, which are the same on every device",
    ),
    **dict.fromkeys(("network/trace", "network/parts", "network/weights"), "places of weights, once a trace"),
    **dict.fromkeys(("storage/codec",), "files"),
    **dict.fromkeys(
        ("laplace/evidence", "laplace/online", "laplace/validation", "laplace/groups"),
        "a few hyperparameters, which SciPy moves",
    ),
    **dict.fromkeys(
        (
            "network/priors", "priors", "laplace/fit", "likelihoods/likelihood", "laplace/constant",
            "ensembles/ensemble", "variational/start",
        ),
        "hyperparameters, masks and first values, once a fit",
    ),
    "curvature/passes": "the counts and sums of a pass, once a fit",
    "training/objective": "the losses of the networks of a stack, once an epoch",
}  # fmt: skip
# Three checks of the labels and the log likelihood: what a batch hands to Python, however many layers there are.
WAITS_A_BATCH = 4


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    with pretended(monkeypatch) as found:
        yield found


@ON_GPU
@NO_MODE
@pytest.mark.parametrize("path", EXACT)
def test_a_gpu_gives_what_the_cpu_gives(path: str) -> None:
    for found, wanted in zip(EXACT[path]("cuda"), EXACT[path]("cpu"), strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6, atol=1e-8)


@ON_GPU
@NO_MODE
@pytest.mark.global_rng
@pytest.mark.parametrize("path", TRAINS)
def test_trainings_run_on_a_gpu(path: str) -> None:
    assert all(found.isfinite().all() and found.is_cuda for found in TRAINS[path]("cuda"))


@NO_MODE
@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")  # LSTM believes in the GPU too
@pytest.mark.parametrize("path", PRETENDED)
def test_no_path_mixes_devices_or_copies_silently(path: str, places: Places) -> None:
    assert GPU in {places.of(answer) for answer in EXACT[path]("cuda")}
    assert not silent(places)


def silent(places: Places) -> dict[tuple[str, str], int]:
    """The copies between the devices that no reason is known for, by the function and the way, in numbers."""
    return {
        (function, way): count
        for (function, way), count in places.copies.items()
        if way in ("to gpu", "to cpu") and function.partition(":")[0] not in COPIES
    }


@NO_MODE
@pytest.mark.global_rng
@pytest.mark.parametrize("path", TRAINS)
def test_no_training_mixes_devices_or_copies_silently(path: str, places: Places) -> None:
    found = TRAINS[path]("cuda")
    assert all(places.of(answer) == GPU for answer in found)
    assert all(answer.isfinite().all() for answer in found)
    assert not silent(places)


@NO_MODE
@pytest.mark.global_rng
def test_copies_do_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training sends the rows of each batch to the GPU, and nothing of the size of the weights."""
    counts = []
    for epochs in (1, 3):
        with monkeypatch.context() as patch, pretended(patch) as places:
            module, (x, y) = problem("perceptron", "cuda")
            options = {"likelihood": "categorical", "batch_size": 6, "generator": 0, "progress": False}
            bs.variational(module, (x, y), family="low_rank", rank=2, epochs=epochs, **options)  # type: ignore[arg-type]
            weights = sum(parameter.numel() for parameter in module.parameters())
            counts.append({each: count for each, count in places.copies.items() if each[1] == "to gpu"})
    sent = ("network/inputs", "private_draws/modes")  # rows, and the noise of weights
    grown = {
        function: count - counts[0].get((function, way), 0)
        for (function, way), count in counts[1].items()
        if function.partition(":")[0] not in sent
    }
    assert max(grown.values(), default=0) < weights


def test_a_batch_waits_for_the_gpu_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once a layer: work is queued while the GPU computes."""
    counts = []
    for batches in (2, 5):
        with monkeypatch.context() as patch, pretended(patch) as places:
            module, (x, y) = problem("resnet", "cuda")
            data = x[:2].repeat(batches, 1, 1, 1), y[:2].repeat(batches)
            bs.fit_curvature(module, data, likelihood="categorical", curvature="fisher", batch_size=2, generator=0)
            counts.append(sum(places.waits[kind] for kind in ("scalar", "to cpu", "nonzero")))
    assert counts[1] - counts[0] <= 3 * WAITS_A_BATCH


@pytest.mark.usefixtures("places")
def test_the_pretence_refuses_what_a_gpu_refuses() -> None:
    x, generator = torch.ones(3, 2).to("cuda"), torch.Generator()
    refused = [
        lambda: x + torch.ones(2),
        lambda: x @ torch.ones(2),
        lambda: x[torch.tensor([0, 1])],
        lambda: torch.zeros(()).add_(x.sum()),
        lambda: torch.stack([x.sum(), torch.tensor(1.0)]),
        lambda: torch.randn(3, device=x.device, generator=generator),
    ]
    for mixed in refused:
        with pytest.raises(RuntimeError, match="device"):
            mixed()
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    assert (x + torch.tensor(1.0)).device == GPU
    assert x.cpu().device == torch.device("cpu")
