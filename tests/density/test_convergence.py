"""R-hat and effective draws against ArviZ and against what is known of an autoregression."""

import arviz
import pytest
import torch

from bayescope.density import convergence
from bayescope.errors import InputError


def autoregression(phi, *, chains=4, draws=1000, columns=20, seed=0):
    """x_t = φ x_{t−1} + noise, from its stationary distribution."""
    source = torch.Generator().manual_seed(seed)
    noise = torch.randn(draws, chains, columns, dtype=torch.float64, generator=source)
    x = [noise[0] / (1 - phi**2) ** 0.5]
    for step in noise[1:]:
        x.append(phi * x[-1] + step)
    return torch.stack(x, 1)


def by_arviz(draws):
    dataset = arviz.convert_to_dataset({"x": draws.numpy()})
    return (
        torch.from_numpy(arviz.rhat(dataset, method="rank")["x"].values),
        torch.from_numpy(arviz.ess(dataset, method="bulk")["x"].values),
    )


def apart(draws):
    return draws + 2.0 * torch.arange(len(draws), dtype=torch.float64)[:, None, None]


def spread(draws):
    return draws * (1.0 + torch.arange(len(draws), dtype=torch.float64))[:, None, None]


CASES = {
    "independent": autoregression(0.0),
    "an odd number of draws": autoregression(0.0, draws=501),
    "slow": autoregression(0.9),
    "antithetic": autoregression(-0.6),
    "two chains": autoregression(0.5, chains=2, draws=400),
    "apart": apart(autoregression(0.3)),
    "unlike spreads": spread(autoregression(0.3)),
    "ties": autoregression(0.5).round(),
    "heavy tails": autoregression(0.2) ** 5,
    **{f"{count} slow draws": autoregression(0.9, draws=count) for count in (4, 5, 6, 7, 8, 9, 11, 13, 50, 101)},
    **{f"{count} antithetic draws": apart(autoregression(-0.9, draws=count)) for count in (6, 7, 11, 50, 101)},
    "slow and apart": apart(autoregression(0.99, draws=400)),
}


@pytest.mark.parametrize("draws", CASES.values(), ids=CASES.keys())
def test_arviz(draws):
    r_hat, effective = convergence(draws)
    expected_r_hat, expected_effective = by_arviz(draws)
    torch.testing.assert_close(r_hat, expected_r_hat, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(effective, expected_effective, rtol=1e-8, atol=0.0)


@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered:RuntimeWarning")
def test_ties_in_few_draws():
    """Folded draws that are all tied say nothing of the spread; the location is judged all the same."""
    draws = autoregression(0.0, draws=5, columns=400, chains=2).round()
    r_hat = convergence(draws)[0]
    expected = by_arviz(draws)[0]
    torch.testing.assert_close(r_hat, expected, rtol=1e-12, atol=0.0, equal_nan=True)
    folded = (draws - draws[:, [0, 1, 3, 4]].flatten(0, 1).quantile(0.5, 0)).abs()[:, [0, 1, 3, 4]].flatten(0, 1)
    assert bool(r_hat[(folded == folded[0]).all(0)].isfinite().any())


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8, -0.4])
def test_autoregression(phi):
    """The effective draws of the mean of an AR(1) are S (1 − φ)/(1 + φ)."""
    _, effective = convergence(autoregression(phi, draws=4000))
    torch.testing.assert_close(effective.median().item(), 16000 * (1 - phi) / (1 + phi), rtol=0.07, atol=0.0)


def test_monotone_maps_change_nothing():
    """Ranks are all that counts for the effective draws: an infinite variance is no trouble."""
    draws = autoregression(0.5)
    torch.testing.assert_close(convergence(draws)[1], convergence(draws.exp())[1], rtol=1e-12, atol=0.0)


def test_one_chain_is_judged_by_its_halves():
    draws = autoregression(0.0, chains=1)
    assert float(convergence(draws)[0].max()) < 1.02
    drifting = draws + torch.linspace(0, 5, draws.shape[1], dtype=torch.float64)[:, None]
    assert float(convergence(drifting)[0].min()) > 1.5


def test_nothing_moved():
    draws = autoregression(0.0, columns=2)
    draws[..., 1] = 3.0
    r_hat, effective = convergence(draws)
    assert r_hat.isnan().tolist() == effective.isnan().tolist() == [False, True]


def test_blocks_change_nothing():
    draws = autoregression(0.5, columns=70)  # more numbers than are worked on at once
    each = [convergence(column) for column in draws.split(1, -1)]
    for whole, parts in zip(convergence(draws), zip(*each, strict=True), strict=True):
        torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-12, atol=0.0)


def test_too_few_draws():
    with pytest.raises(InputError, match="at least 4 a chain, got 3"):
        convergence(torch.zeros(2, 3, 1))
