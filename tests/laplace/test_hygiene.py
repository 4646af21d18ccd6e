"""What Laplace's approximation leaves alone, what it repeats to the bit, and which data it takes."""

from __future__ import annotations

import copy
import io
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bayescope import laplace
from bayescope.errors import InputError
from tests.laplace.problems import (
    STRUCTURES,
    UNTRAINED,
    gaussian,
    mlp,
    normal,
    nothing_written,
    seeded,
    set_flat,
)

# --- nothing is written, and nothing is left to chance ----------------------------------------------------------------


def noisy_network() -> nn.Sequential:
    net = seeded(
        lambda: nn.Sequential(
            nn.Conv1d(1, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 3)
        )
    ).float()
    net.train()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    return net


@UNTRAINED
@pytest.mark.parametrize("structure", STRUCTURES)
def test_fits_and_queries_write_nothing(structure: str) -> None:
    net, x, y = noisy_network(), normal(10, 1, 6, seed=1).float(), torch.arange(10) % 3
    with nothing_written(net):
        q = laplace(net, (x, y), likelihood="categorical", structure=structure, generator=0, **STRUCTURES[structure])
        gaussian(q)
    kept = copy.deepcopy(q)
    inner = q.function.module  # type: ignore[union-attr]
    mode, evidence = q.mean, q.log_evidence()
    with nothing_written(inner), nothing_written(net):
        q.predict(x).summary()
        q.predict(x, method="sampled", samples=3, generator=1).interval(0.9)
        q.predict(x, integral="monte_carlo", samples=3, generator=1).interval(0.9)
        q.sample_functions(x, 2, generator=0)
        q.sample(2, generator=0)
        q.log_evidence(prior_precision=3.0)
        q.summary()
        q.model(x)
    assert torch.equal(q.mean, mode)
    assert torch.equal(q.log_evidence(), evidence)
    assert torch.equal(kept.predict(x).probs, q.predict(x).probs)


@UNTRAINED
def test_the_posterior_does_not_follow_the_callers_network() -> None:
    net, x, y = mlp(2), normal(10, 2, seed=1), torch.arange(10) % 2
    q = laplace(net, (x, y), likelihood="categorical")
    before = q.predict(x).probs
    set_flat(net, torch.zeros(22, dtype=torch.float64))
    set_flat(q.model, torch.zeros(22, dtype=torch.float64))  # the user's own as well
    assert torch.equal(q.predict(x).probs, before)
    assert torch.equal(copy.deepcopy(q).predict(x).probs, before)


@UNTRAINED
@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("structure", ["kfac", "ekfac", "full"])
def test_gradients_may_be_switched_off_around(around: Any, structure: str) -> None:
    x, y = normal(10, 2, seed=1), torch.arange(10) % 2
    plain = laplace(mlp(2), (x, y), likelihood="categorical", structure=structure)
    net = mlp(2)
    with around():
        q = laplace(net, (x, y), likelihood="categorical", structure=structure)
        assert torch.equal(q.predict(x).probs, plain.predict(x).probs)
        assert q.fit.effective_parameters() == plain.fit.effective_parameters()  # type: ignore[union-attr]
        if structure != "ekfac":
            assert torch.equal(q.condition((x, y)).mean, plain.condition((x, y)).mean)
    prior = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    q.log_evidence(prior_precision=prior).backward()  # of use outside, too
    assert prior.grad != 0


@UNTRAINED
def test_a_network_that_writes_over_its_inputs_leaves_the_data() -> None:
    net = seeded(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)))
    x, y = normal(10, 2, seed=1), torch.arange(10) % 2
    kept = x.clone()
    q = laplace(net, (x, y), likelihood="categorical")
    q.condition((x, y))
    q.predict(x)
    q.predict(x, method="sampled", samples=2, generator=0)
    q.sample_functions(x, 2, generator=0)
    assert torch.equal(x, kept)


@UNTRAINED
@pytest.mark.parametrize("curvature", ["ggn", "fisher", "empirical_fisher"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_same_generator_gives_the_same_numbers(curvature: str, structure: str) -> None:
    x, y = normal(10, 2, seed=1), torch.arange(10) % 3

    def answers(seed: int) -> list[Any]:
        q = laplace(
            mlp(3), (x, y), likelihood="categorical", curvature=curvature, structure=structure,
            generator=torch.Generator().manual_seed(seed), **STRUCTURES[structure],
        )  # fmt: skip
        sampled = q.predict(x, method="sampled", samples=4, generator=seed)
        return [q.log_evidence(), q.sample(2, generator=seed), sampled.probs, q.sample_functions(x, 2, generator=seed)]

    assert all(torch.equal(one, other) for one, other in zip(answers(3), answers(3), strict=True))
    if curvature == "fisher":
        assert not torch.equal(answers(3)[0], answers(4)[0])


@UNTRAINED
@pytest.mark.parametrize("structure", STRUCTURES)
def test_copies_and_files(structure: str) -> None:
    x, y = normal(10, 2, seed=1), torch.arange(10) % 2
    q = laplace(mlp(2), (x, y), likelihood="categorical", structure=structure, generator=0, **STRUCTURES[structure])
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    for twin in (copy.deepcopy(q), torch.load(file, weights_only=False)):
        assert torch.equal(twin.predict(x).probs, q.predict(x).probs)
        assert torch.equal(twin.log_evidence(prior_precision=2.0), q.log_evidence(prior_precision=2.0))
        assert torch.equal(twin.sample(2, generator=0), q.sample(2, generator=0))


@UNTRAINED
@pytest.mark.parametrize("structure", STRUCTURES)
def test_single_precision_is_close_to_double(structure: str) -> None:
    x, y = normal(10, 2, seed=1), torch.arange(10) % 2
    options = {"likelihood": "categorical", "structure": structure, "generator": 0, **STRUCTURES[structure]}
    double, single = laplace(mlp(2), (x, y), **options), laplace(mlp(2).float(), (x, y), **options)
    assert single.log_evidence().dtype == single.mean.dtype == torch.float64
    torch.testing.assert_close(single.log_evidence(), double.log_evidence(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single.predict(x).probs.double(), double.predict(x).probs, rtol=1e-4, atol=1e-4)


# --- data -------------------------------------------------------------------------------------------------------------


@final
class Augmented(Dataset[Any]):
    """Rows with fresh noise at each reading."""

    def __init__(self, x: Tensor, y: Tensor, scale: float) -> None:
        self.x, self.y, self.scale, self.generator = x, y, scale, torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(self.x.shape[1:], generator=self.generator, dtype=self.x.dtype)
        return self.x[i] + self.scale * noise, self.y[i]


@UNTRAINED
@pytest.mark.parametrize("structure", ["full", "kfac", "ekfac"])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_random_augmentation_is_refused(structure: str, scale: float) -> None:
    data = Augmented(normal(30, 2, seed=1), torch.arange(30) % 2, scale)
    with pytest.raises(InputError, match="Take out random augmentation"):
        laplace(mlp(2), data, likelihood="categorical", structure=structure)
    data.scale = 0.0
    laplace(mlp(2), data, likelihood="categorical", structure=structure)


@UNTRAINED
@pytest.mark.global_rng
@pytest.mark.parametrize("structure", ["full", "kfac", "ekfac"])
def test_a_shuffled_loader_is_the_same_data(structure: str) -> None:
    x, y = normal(30, 2, seed=1), torch.arange(30) % 2
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    shuffled = laplace(mlp(2), loader, likelihood="categorical", structure=structure)
    plain = laplace(mlp(2), (x, y), likelihood="categorical", structure=structure)
    torch.testing.assert_close(shuffled.log_evidence(), plain.log_evidence())
    assert shuffled.fit.fingerprint == plain.fit.fingerprint  # type: ignore[union-attr]


@UNTRAINED
def test_dense_outputs() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).movedim(1, -1)

    net, x, y = seeded(Pixels), normal(4, 1, 3, 5, seed=1), torch.arange(60).reshape(4, 3, 5) % 2
    q = laplace(net, (x, y), likelihood="categorical")
    assert q.fit.observations == 60  # type: ignore[union-attr]
    assert q.predict(x).probs.shape == (4, 3, 5, 2)
    assert q.sample_functions(x, 2, generator=0).shape == (2, 4, 3, 5, 2)
