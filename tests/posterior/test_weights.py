"""The weights one by one: their intervals, their names, a table of them, and what takes them elsewhere."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import bayescope as bs
from bayescope.errors import InputError, MemoryBudgetError, OptionError, UndefinedQuantityError, UnsupportedError
from bayescope.memory import memory_limit
from bayescope.models import LinearModel
from bayescope.posterior import (
    Cone,
    DrawsPosterior,
    GaussianPosterior,
    MixturePosterior,
    PointPosterior,
    Posterior,
    Record,
    onto_cone,
    with_names,
)
from bayescope.precision import DensePrecision, DiagonalPrecision
from bayescope.transforms import NamedTransforms

MEAN = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
MATRIX = torch.tensor([[2.0, 0.4, 0.1], [0.4, 1.5, 0.0], [0.1, 0.0, 3.0]], dtype=torch.float64)
RECORD = Record("laplace")
Z90 = 1.6448536269514722


def gaussian(shift: float = 0.0, **parts: Any) -> GaussianPosterior:
    return GaussianPosterior(MEAN + shift, DensePrecision(MATRIX), RECORD, **parts)


def share_inside(q: Posterior, level: float) -> torch.Tensor:
    low, high = q.interval(level)
    draws = q.sample(200_000, generator=1)
    return torch.stack([(draws < low).double().mean(0), (draws > high).double().mean(0)])


class TestInterval:
    def test_a_gaussian_has_the_closed_form(self) -> None:
        q = gaussian()
        low, high = q.interval(0.9)
        sd = torch.linalg.inv(MATRIX).diagonal().sqrt()
        torch.testing.assert_close(low, MEAN - Z90 * sd)
        torch.testing.assert_close(high, MEAN + Z90 * sd)
        assert torch.equal(q.interval()[0], q.interval(0.95)[0])

    @pytest.mark.parametrize(
        ("names", "sure"),
        [
            (("positive", None, "unit_interval"), True),
            (("ordered", "ordered", "ordered"), False),
            (("positive", "ordered", "ordered"), False),
        ],
    )
    def test_each_tail_has_its_share_under_a_transform(self, names: tuple[str | None, ...], sure: bool) -> None:
        q = gaussian(transform=NamedTransforms(names))
        shares = share_inside(q, 0.8)
        # 200,000 draws count a share to 7e-4; quantiles of 16,384 draws lie 2.3e-3 off.
        assert (shares - 0.1).abs().max() < (0.004 if sure else 0.013)
        low, high = q.interval(0.8)
        alone = torch.tensor([name != "ordered" or place == names.index("ordered") for place, name in enumerate(names)])
        u_low, u_high = gaussian().interval(0.8)
        assert torch.equal(low[alone], q.transform.forward(u_low)[alone])  # type: ignore[union-attr]
        assert torch.equal(high[alone], q.transform.forward(u_high)[alone])  # type: ignore[union-attr]
        assert torch.equal(low, q.interval(0.8)[0])  # the draws are the same each time

    def test_a_transform_of_the_callers_own_goes_by_draws(self) -> None:
        class Mirrored:
            """Decreasing, so that the ends would change places."""

            def forward(self, u: torch.Tensor) -> torch.Tensor:
                return -u

            inverse = forward

            def log_jacobian(self, u: torch.Tensor) -> torch.Tensor:
                return torch.zeros_like(u[..., 0])

        assert (share_inside(gaussian(transform=Mirrored()), 0.8) - 0.1).abs().max() < 0.013

    def test_bounded_weights_stay_in_their_cone(self) -> None:
        bounded = torch.tensor([1])
        moved, restricted, cone = onto_cone(MEAN, MATRIX, bounded, torch.arange(3))
        assert isinstance(cone, Cone)
        q = GaussianPosterior(moved, DensePrecision(restricted), RECORD, cones=(cone,))
        low, high = q.interval(0.5)
        assert low[1] == 0.0
        assert high[1] == q.sample(2**14, generator=0)[:, 1].quantile(0.75)

    def test_a_mixture_is_exact(self) -> None:
        weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
        q = MixturePosterior(weights.log(), [gaussian(), gaussian(3.0)], RECORD)
        low, high = q.interval(0.9)
        sd = torch.linalg.inv(MATRIX).diagonal().sqrt()
        for end, level in ((low, 0.05), (high, 0.95)):
            below = sum(
                w * torch.special.ndtr((end - MEAN - at) / sd) for w, at in zip(weights, (0.0, 3.0), strict=True)
            )
            torch.testing.assert_close(below, torch.full_like(MEAN, level), rtol=0, atol=1e-12)

    def test_a_mixture_goes_through_its_transform(self) -> None:
        transform = NamedTransforms(("positive", "ordered", "ordered"))
        parts = [gaussian(shift, transform=transform) for shift in (0.0, 2.0)]
        q = MixturePosterior(torch.tensor([0.3, 0.7], dtype=torch.float64).log(), parts, RECORD)
        assert (share_inside(q, 0.8) - 0.1).abs().max() < 0.013
        plain = MixturePosterior(q.log_weights, [gaussian(), gaussian(2.0)], RECORD)
        assert torch.equal(q.interval(0.8)[1][:2], transform.forward(plain.interval(0.8)[1])[:2])

    def test_a_mixture_of_points_has_its_own_quantiles(self) -> None:
        parts = [PointPosterior(MEAN + shift, RECORD) for shift in (0.0, 1.0, 5.0)]
        q = MixturePosterior(torch.tensor([0.6, 0.39, 0.01], dtype=torch.float64).log(), parts, RECORD)
        low, high = q.interval(0.9)
        assert torch.equal(low, MEAN)
        assert torch.equal(high, MEAN + 1.0)

    def test_draws_have_their_quantiles(self) -> None:
        draws = gaussian().sample(401, generator=2)[None]
        low, high = DrawsPosterior(draws, Record("nuts")).interval(0.8)
        expected = np.quantile(draws[0].numpy(), [0.1, 0.9], axis=0)
        np.testing.assert_allclose(np.stack([low, high]), expected, rtol=1e-12)

    def test_columns_are_sorted_some_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        q = DrawsPosterior(gaussian().sample(50, generator=2)[None], Record("nuts"))
        whole = q.interval(0.8)
        monkeypatch.setattr(
            "bayescope.posterior.weight_tables.row_blocks", lambda rows, _: [slice(0, 2), slice(2, rows)]
        )
        assert all(torch.equal(one, other) for one, other in zip(whole, q.interval(0.8), strict=True))

    def test_a_point_has_none(self) -> None:
        with pytest.raises(UndefinedQuantityError, match="interval: a posterior by map is one point"):
            PointPosterior(MEAN, Record("map")).interval()

    def test_the_level_is_checked(self) -> None:
        for level in (0.0, 1.0, 95):
            with pytest.raises(InputError, match="level"):
                gaussian().interval(level)

    def test_no_covariance_is_made(self) -> None:
        many = 200_000
        q = GaussianPosterior(torch.zeros(many), DiagonalPrecision(torch.full((many,), 4.0)), RECORD)
        with memory_limit(2**26):
            low, high = q.interval()
        assert float((high - low).sub(2 * 1.959963984540054 * 0.5).abs().max()) < 1e-12


def network() -> nn.Sequential:
    """A layer norm of two features, whose derivative is within rounding for some initial weights: these are seeded."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.LayerNorm(2), nn.Linear(2, 4))


def fitted(module: nn.Module | None = None, **options: Any) -> GaussianPosterior:
    x = torch.randn(15, 3, generator=torch.Generator().manual_seed(0))
    options = {"prior_precision": 2.0, **options}
    return bs.laplace(module or network(), (x, torch.arange(15) % 4), likelihood="categorical", **options)


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
class TestNames:
    def test_a_density_numbers_its_coordinates_unless_they_have_names(self) -> None:
        assert gaussian().names == ("theta[0]", "theta[1]", "theta[2]")
        q = with_names(gaussian(), ("rate", "shift[0]", "shift[1]"))
        assert q.names == ("rate", "shift[0]", "shift[1]")
        assert list(q.summary_frame()["name"]) == list(q.names)
        assert MixturePosterior(torch.zeros(1), [q], RECORD).names == q.names

    def test_a_linear_model_counts_its_inputs(self) -> None:
        assert gaussian(function=LinearModel(2)).names == ("x0", "x1", "intercept")
        names = dataclasses.replace(gaussian(), function=LinearModel(1, 3, bias=False)).names
        assert names == ("0: x0", "1: x0", "2: x0")

    def test_an_estimator_has_its_columns(self, tmp_path: Any) -> None:
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"age": rng.normal(size=60), "dose": rng.normal(size=60)})
        label = np.array(["a", "b", "c"])[np.arange(60) % 3]
        model = bs.BayesianLogisticRegression(posterior="laplace").fit(frame, label)
        q = model.posterior_
        assert q.names == model.weight_names_
        assert q.names[:3] == ("a: age", "a: dose", "b: age")
        assert q.names[-1] == "c: intercept"
        assert bs.load(q.save(tmp_path / "q.bayes")).names == q.names
        line = bs.BayesianLinearRegression(prior_precision=1.0).fit(frame, rng.normal(size=60))
        assert line.posterior_.names == ("age", "dose", "intercept")
        assert line.partial_fit(frame, rng.normal(size=60)).posterior_.names == ("age", "dose", "intercept")

    def test_an_additive_model_has_its_terms(self) -> None:
        frame = pd.DataFrame({"age": np.linspace(-1, 1, 40), "dose": np.cos(np.arange(40))})
        q = bs.NeuralAdditiveRegressor(random_state=0).fit(frame, np.sin(3 * frame["age"])).posterior_
        assert len(set(q.names)) == len(q.mean) == len(q.names)
        assert q.names[0] == "age[0]"
        assert q.names[-1] == "intercept"
        assert {name.partition("[")[0] for name in q.names} == {"age", "dose", "intercept"}
        state = q.state_dict()
        assert torch.equal(torch.cat(list(state.values())), q.mean)
        assert list(state) == ["terms.age", "terms.dose", "intercept"]

    def test_a_network_has_places_in_parameters(self) -> None:
        q = fitted()
        values = q.model.state_dict()
        for name, mean in zip(q.names, q.mean, strict=True):
            parameter, _, place = name.partition("[")
            entry = values[parameter][tuple(map(int, place.rstrip("]").split(", ")))]
            assert float(entry) == pytest.approx(float(mean))
        assert q.names[4] == "0.weight[1, 1]"

    def test_a_mask_leaves_names_out(self) -> None:
        mask = torch.zeros(2, 3, dtype=torch.bool)
        mask[1, 0] = mask[0, 2] = True
        q = fitted(weights={"0.weight": mask}, structure="full")
        assert q.names == ("0.weight[0, 2]", "0.weight[1, 0]")

    def test_a_number_needs_no_place(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.tensor(0.7))
                self.head = nn.Linear(3, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.scale * self.head(x)

        q = fitted(Scaled(), structure="block")
        assert q.names[:2] == ("scale", "head.weight[0, 0]")
        assert list(q.summary_frame(by="layer")["layer"]) == ["scale", "head"]

    def test_very_many_names_are_refused(self) -> None:
        many = 100_000
        q = GaussianPosterior(torch.zeros(many), DiagonalPrecision(torch.ones(many)), RECORD)
        with memory_limit(2**20), pytest.raises(MemoryBudgetError, match="names of 100,000 weights"):
            _ = q.names

    def test_arviz_has_them(self) -> None:
        pytest.importorskip("arviz", reason="ArviZ is not installed")
        q = with_names(gaussian(), ("rate", "low", "high"))
        theta = q.to_arviz(draws=4, generator=0)["posterior"]["theta"]
        assert list(theta.coords["weight"].values) == ["rate", "low", "high"]


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
class TestTable:
    def test_a_row_a_weight(self) -> None:
        q = gaussian(function=LinearModel(2))
        frame = q.summary_frame(0.9)
        assert list(frame.columns) == ["name", "mean", "sd", "low", "high"]
        for name, values in {"mean": q.mean, "sd": q.sd, "low": q.interval(0.9)[0], "high": q.interval(0.9)[1]}.items():
            assert np.array_equal(frame[name], values.numpy())

    def test_draws_bring_their_diagnosis(self) -> None:
        q = bs.density.nuts(lambda t: -0.5 * (t * t).sum(), 2, draws=60, tune=60, chains=2, generator=0)
        frame = q.summary_frame()
        assert list(frame.columns[-2:]) == ["effective_draws", "r_hat"]
        assert np.array_equal(frame["r_hat"], q.r_hat.numpy())

    def test_a_point_has_only_means(self) -> None:
        frame = PointPosterior(MEAN, Record("map")).summary_frame()
        assert np.array_equal(frame["mean"], MEAN.numpy())
        assert frame[["sd", "low", "high"]].isna().all(axis=None)

    def test_a_row_a_layer(self) -> None:
        q = fitted()
        frame, each = q.summary_frame(0.5, by="layer"), q.summary_frame(0.5)
        assert list(frame["layer"]) == ["0", "2", "3"]
        assert list(frame["weights"]) == [8, 4, 12]
        each["layer"] = each["name"].str.partition(".")[0]
        for layer, rows in each.groupby("layer"):
            found = frame[frame["layer"] == layer].iloc[0]
            assert found["mean_size"] == pytest.approx(math.sqrt((rows["mean"] ** 2).mean()))
            assert found["sd"] == pytest.approx(math.sqrt((rows["sd"] ** 2).mean()))
            assert found["away_from_0"] == pytest.approx(((rows["low"] > 0) | (rows["high"] < 0)).mean())
        point = PointPosterior(q.mean, Record("map"), q.function).summary_frame(by="layer")
        assert point[["sd", "away_from_0"]].isna().all(axis=None)

    def test_many_weights_are_told_by_layer(self) -> None:
        many = 1_000_001
        q = GaussianPosterior(torch.zeros(many), DiagonalPrecision(torch.ones(many)), RECORD)
        with pytest.raises(InputError, match=r"at most 1,000,000 weights .* got 1,000,001\. Take by='layer'"):
            q.summary_frame()

    def test_options_are_checked(self) -> None:
        with pytest.raises(UnsupportedError, match="not a network"):
            gaussian(function=LinearModel(2)).summary_frame(by="layer")
        with pytest.raises(OptionError):
            gaussian().summary_frame(by="tensor")  # type: ignore[arg-type]
        with pytest.raises(InputError):
            PointPosterior(MEAN, Record("map")).summary_frame(1.5)


@pytest.mark.global_rng
@pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")
class TestStateDict:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_module_loads_it(self, dtype: torch.dtype) -> None:
        module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).to(dtype)
        module[1].running_mean.add_(0.3)
        q = fitted(module, weights="2.*", structure="full")
        moved = dataclasses.replace(q, location=q.location + 0.5)
        fresh = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).to(dtype).eval()
        fresh.load_state_dict(moved.state_dict())
        x = torch.randn(6, 3, dtype=dtype)
        torch.testing.assert_close(fresh(x).double(), moved.predict(x).latent_mean.double(), rtol=1e-5, atol=1e-6)
        assert torch.equal(fresh[0].weight, module[0].weight)
        before = q.mean
        next(iter(q.state_dict().values())).zero_()
        assert torch.equal(q.mean, before)
        assert q.model[0].weight.any()

    def test_a_linear_layer_loads_it(self) -> None:
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(50, 2)), rng.integers(0, 3, 50)
        model = bs.BayesianLogisticRegression(posterior="laplace").fit(X, y)
        layer = nn.Linear(2, 3).double()
        layer.load_state_dict(model.posterior_.state_dict())
        f = layer(torch.from_numpy(model.transform_inputs(X)))
        torch.testing.assert_close(f, torch.from_numpy(model.predict_distribution(X).latent_mean))

    def test_a_density_has_theta(self) -> None:
        assert torch.equal(gaussian().state_dict()["theta"], MEAN)

    def test_several_networks_have_no_mean(self) -> None:
        q = fitted()
        draws = DrawsPosterior(q.sample(3, generator=0)[None], Record("sgmcmc"), q.function, q.likelihood)
        mixture = MixturePosterior(torch.zeros(1, dtype=torch.float64), [q], RECORD, q.function, q.likelihood)
        for several in (draws, mixture):
            with pytest.raises(UndefinedQuantityError, match="the mean of their weights is none of them"):
                several.state_dict()
