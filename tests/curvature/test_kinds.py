"""Cotangents: their outer products are Λ, whatever the chunks, and drawn labels do not depend on the batches."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from bayescope.curvature import STRUCTURES, SUPPORTED, CurvatureOptions, Observations
from bayescope.errors import InputError, OptionError, UnsupportedError
from tests.cases import LIKELIHOODS, LikelihoodCase
from tests.reference import expected_hessian

everywhere = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS.keys())


def _observations(case: LikelihoodCase, rows: int, positions: int | None = None) -> Observations:
    generator = torch.Generator().manual_seed(rows)
    shape = (rows, case.outputs) if positions is None else (rows, positions, case.outputs)
    f = torch.randn(shape, dtype=torch.float64, generator=generator)
    labels = case.labels[torch.arange(math.prod(shape[:-1])) % len(case.labels)]
    return Observations.read(case.likelihood, f, labels.reshape(*shape[:-1], *labels.shape[1:]), first=0)


def _joined(observations: Observations, kind: str, cotangents: int | None = None) -> Tensor:
    return torch.cat(list(observations.seeds(kind, 5, cotangents)))


def ggn_middle(case: LikelihoodCase, observations: Observations) -> Tensor:
    """The Λ of the GGN from the likelihood's Hessian: as observed, or its expectation where that is indefinite."""
    if case.expected:
        return expected_hessian(case.likelihood, observations.f, case.labels)
    return case.likelihood.hessian(observations.f, observations.y)


def test_every_pair_is_either_supported_or_refused_with_the_table() -> None:
    for kind, names in SUPPORTED.items():
        for structure in STRUCTURES:
            if structure in names:
                CurvatureOptions(kind, structure).checked(sized=False)
                continue
            with pytest.raises(UnsupportedError, match=r"got 'kfac'|got 'ekfac'|got 'low_rank'") as caught:
                CurvatureOptions(kind, structure).checked(sized=False)
            assert "'hessian' with 'full', 'block', 'diagonal'" in str(caught.value)
    with pytest.raises(OptionError, match=r"curvature: .*Did you mean 'fisher'"):
        CurvatureOptions("fischer", "full").checked()
    with pytest.raises(OptionError, match=r"structure: .*Did you mean 'kfac'"):
        CurvatureOptions("ggn", "kfak").checked()


@everywhere
def test_ggn_cotangents_are_a_root_of_the_hessian(case: LikelihoodCase) -> None:
    observations = _observations(case, 7)
    seeds = _joined(observations, "ggn")
    middle = ggn_middle(case, observations)
    torch.testing.assert_close(torch.einsum("knc,knd->ncd", seeds, seeds), middle, rtol=1e-10, atol=1e-14)
    assert len(seeds) == case.outputs - (case.likelihood.name in ("categorical", "bradley_terry"))


@everywhere
@pytest.mark.parametrize("kind", ["ggn", "empirical_fisher"])
def test_positions_are_observations_without_cross_terms(case: LikelihoodCase, kind: str) -> None:
    observations = _observations(case, 4, positions=3)
    seeds = _joined(observations, kind)
    moments = torch.einsum("knsc,kntd->nstcd", seeds, seeds)
    gradient = case.likelihood.gradient(observations.f, observations.y)
    outer = gradient[:, :, None] * gradient[:, None, :]
    middle = ggn_middle(case, observations) if kind == "ggn" else outer
    expected = torch.zeros_like(moments)
    for s in range(3):
        expected[:, s, s] = middle.unflatten(0, (4, 3))[:, s]
    torch.testing.assert_close(moments, expected, rtol=1e-10, atol=1e-14)


@everywhere
@pytest.mark.parametrize("positions", [None, 3])
def test_chunks_are_the_whole_in_pieces(case: LikelihoodCase, positions: int | None) -> None:
    observations = _observations(case, 5, positions)
    for kind in ("ggn", "fisher", "empirical_fisher"):
        whole = _joined(observations, kind)
        for size in (1, 2, 100):
            chunks = list(observations.seeds(kind, 5, size))
            assert max(map(len, chunks)) <= size
            assert all(chunk.shape[1:] == observations.shape for chunk in chunks)
            assert torch.equal(torch.cat(chunks), whole)


@everywhere
def test_drawn_labels_do_not_depend_on_the_batches(case: LikelihoodCase) -> None:
    whole = _observations(case, 600)
    drawn = whole.drawn(11)
    assert drawn.shape == whole.y.shape
    assert torch.equal(drawn, whole.drawn(11))
    assert not torch.equal(drawn, whole.drawn(12))
    for places in ((0, 1, 2, 255, 256, 257, 600), range(0, 601, 50), (0, 256, 512, 600), (0, 300, 600)):
        ends = list(pairwise(places))
        pieces = [Observations.read(case.likelihood, whole.f[i:j], whole.y[i:j], first=i).drawn(11) for i, j in ends]
        assert torch.equal(torch.cat(pieces), drawn)


@everywhere
def test_the_drawn_fisher_is_the_fisher_in_expectation(case: LikelihoodCase) -> None:
    """Mean of g gᵀ over 20,000 labels drawn at one f, within 4.5 standard errors: g = ∂ log p(ỹ∣f)/∂f."""
    n = 20_000
    f = torch.linspace(-1, 1, case.outputs, dtype=torch.float64).expand(n, -1)
    y = case.labels[:1].expand(n, *case.labels.shape[1:])
    seeds = _joined(Observations.read(case.likelihood, f, y, first=0), "fisher")
    assert seeds.shape == (1, n, case.outputs)
    outer = seeds[0, :, :, None] * seeds[0, :, None, :]
    root = case.likelihood.fisher_sqrt(f[:1])[0]
    error = outer.std(0) / math.sqrt(n)
    assert ((outer.mean(0) - root @ root.mT).abs() <= 4.5 * error + 1e-12).all()


@everywhere
def test_the_log_likelihood_sums_over_observations_in_float64(case: LikelihoodCase) -> None:
    observations = _observations(case, 6, positions=2)
    single = Observations(
        case.likelihood, observations.shape, observations.f.to(torch.float32), observations.y, 0
    ).log_likelihood()
    assert single.dtype == torch.float64
    truth = case.likelihood.log_prob(observations.f, observations.y).sum()
    torch.testing.assert_close(observations.log_likelihood(), truth)
    torch.testing.assert_close(single, truth, rtol=1e-5, atol=1e-6)


def test_targets_that_do_not_fit_are_refused() -> None:
    likelihood = LIKELIHOODS["categorical, 3 classes"].likelihood
    with pytest.raises(InputError, match="expected 4 labels, one for each output, got 3"):
        Observations.read(likelihood, torch.zeros(4, 3), torch.zeros(3, dtype=torch.int64), first=0)
    with pytest.raises(InputError, match=r"one label for each of the positions \(4, 2\) .* got shape \(4,\)"):
        Observations.read(likelihood, torch.zeros(4, 2, 3), torch.zeros(4, dtype=torch.int64), first=0)
    with pytest.raises(InputError, match=r"outputs of shape \(N, C\)"):
        Observations.read(likelihood, torch.zeros(4), torch.zeros(4, dtype=torch.int64), first=0)
