"""Weights of rows: a row of weight w counts as w equal rows, in every posterior and every part of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

import bayescope as bs
from bayescope.errors import InputError, InputTypeError, UnsupportedError
from tests.laplace.problems import mlp, normal, seeded

ROWS = 13
x = normal(ROWS, 2, seed=1)
labels = torch.arange(ROWS) % 3
numbers = normal(ROWS, 2, seed=2)
weights = torch.tensor([1.0, 2, 0, 3, 1, 1, 2, 0, 1, 4, 1, 2, 1])
IGNORE_MODE = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")


def repeated(*arrays: Tensor) -> tuple[Tensor, ...]:
    return tuple(array.repeat_interleave(weights.long(), 0) for array in arrays)


class Table(nn.Module):
    """An embedding of several tokens, a convolution over them, and outputs for each of three positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mixed = nn.Embedding(5, 4, padding_idx=0), nn.Conv1d(4, 4, 2)
        self.last = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.mixed(self.table(tokens).mT)).mT)
        return out


tokens = torch.randint(0, 5, (ROWS, 4), generator=torch.Generator().manual_seed(3))
token_labels = torch.randint(0, 3, (ROWS, 3), generator=torch.Generator().manual_seed(4))
CASES: dict[str, tuple[Callable[[], nn.Module], Any, Any, Any]] = {
    "labels": (lambda: mlp(3), x, labels, "categorical"),
    "numbers": (lambda: mlp(2), x, numbers, bs.Gaussian(0.3)),
    "binary": (lambda: mlp(2), x, (numbers > 0).long(), "bernoulli"),
    "tokens": (lambda: seeded(Table), tokens, token_labels, "categorical"),
}
STRUCTURES = ("full", "diagonal", "kfac", "ekfac")
KINDS = ("ggn", "empirical_fisher", "hessian")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_curvatures_are_those_of_repeated_rows(case: str, structure: Any, kind: Any) -> None:
    make, inputs, targets, likelihood = CASES[case]
    if kind == "hessian" and structure in ("kfac", "ekfac"):
        return
    options: dict[str, Any] = {"likelihood": likelihood, "structure": structure, "curvature": kind}
    found = bs.fit_curvature(make(), (inputs, targets, weights), batch_size=4, **options)
    expected = bs.fit_curvature(make(), repeated(inputs, targets), **options)
    torch.testing.assert_close(found.precision.to_dense(), expected.precision.to_dense(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.log_likelihood, expected.log_likelihood)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_positions_of_a_row_have_its_weight(sharing: Any) -> None:
    make, inputs, targets, likelihood = CASES["tokens"]
    options: dict[str, Any] = {"likelihood": likelihood, "structure": "kfac", "sharing": sharing}
    found = bs.fit_curvature(make(), (inputs, targets, weights), **options)
    expected = bs.fit_curvature(make(), repeated(inputs, targets), **options)
    torch.testing.assert_close(found.precision.to_dense(), expected.precision.to_dense(), rtol=1e-9, atol=1e-9)


def test_drawn_labels_have_the_weights_of_their_rows() -> None:
    twice, once = (
        bs.fit_curvature(mlp(3), (x, labels, w), likelihood="categorical", curvature="fisher", structure="full",
                         generator=0)
        for w in (2 * torch.ones(ROWS), torch.ones(ROWS))
    )  # fmt: skip
    torch.testing.assert_close(twice.precision.to_dense(), 2 * once.precision.to_dense())


def same(q: Any, expected: Any, tolerance: float = 1e-8) -> None:
    p, right = q.predict(x, generator=0), expected.predict(x, generator=0)
    torch.testing.assert_close(p.mean, right.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(p.variance, right.variance, rtol=tolerance, atol=tolerance)


@IGNORE_MODE
@pytest.mark.parametrize("case", ["labels", "numbers", "tokens"])
@pytest.mark.parametrize("prior", ["auto", "evidence", 0.7])
def test_laplace_is_that_of_repeated_rows(case: str, prior: Any) -> None:
    make, inputs, targets, likelihood = CASES[case]
    options: dict[str, Any] = {"likelihood": likelihood, "prior_precision": prior}
    q = bs.laplace(make(), (inputs, targets, weights), **options)
    expected = bs.laplace(make(), repeated(inputs, targets), **options)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(q.sd, expected.sd, rtol=1e-4, atol=1e-6)
    assert q.likelihood == expected.likelihood
    assert type(q.predict(inputs).likelihood) is type(expected.predict(inputs).likelihood)


@IGNORE_MODE
def test_noise_is_that_of_repeated_rows() -> None:
    options: dict[str, Any] = {"likelihood": bs.Gaussian("evidence"), "prior_precision": "evidence"}
    q: Any = bs.laplace(mlp(2), (x, numbers, weights), **options)
    expected: Any = bs.laplace(mlp(2), repeated(x, numbers), **options)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(q.likelihood.noise_variance, expected.likelihood.noise_variance, rtol=1e-4, atol=0)


def test_modes_are_those_of_repeated_rows() -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 0.5, "generator": 0, "progress": False}
    same(bs.fit_map(mlp(3), (x, labels, weights), **options), bs.fit_map(mlp(3), repeated(x, labels), **options), 1e-4)


def test_draws_of_nuts_are_those_of_repeated_rows() -> None:
    options: dict[str, Any] = {
        "likelihood": "categorical", "prior_precision": 1.0, "draws": 4, "tune": 2, "chains": 1, "max_depth": 2,
        "generator": 0, "progress": False,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # four draws
        q, expected = (bs.nuts(mlp(3), data, **options) for data in ((x, labels, weights), repeated(x, labels)))
    torch.testing.assert_close(q.draws, expected.draws, rtol=1e-5, atol=1e-5)


def test_kernels_are_those_of_repeated_rows() -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 0.7}
    q, expected = (bs.function_space(mlp(3), data, **options) for data in ((x, labels, weights), repeated(x, labels)))
    same(q, expected)


def training(posterior: str) -> Callable[[Any], Any]:
    """A short training in one minibatch, which draws the same whatever the rows are."""
    common: dict[str, Any] = {
        "likelihood": bs.Gaussian(0.3), "prior_precision": 0.5, "epochs": 3, "lr": 1e-2, "batch_size": 100,
        "generator": 0, "progress": False,
    }  # fmt: skip
    more: dict[str, dict[str, Any]] = {"variational": {"estimator": "reparameterization"}, "ensemble": {}}
    make: Any = [mlp(2), mlp(2, seed=1)] if posterior == "ensemble" else mlp(2)
    return lambda data: getattr(bs, posterior)(make, data, **common, **more[posterior])


@IGNORE_MODE
@pytest.mark.parametrize("posterior", ["variational", "ensemble"])
def test_trainings_see_repeated_rows(posterior: str) -> None:
    train = training(posterior)
    q, expected = train((x, numbers, weights)), train(repeated(x, numbers))
    torch.testing.assert_close(q.mean, expected.mean, rtol=1e-6, atol=1e-8)


@IGNORE_MODE
@pytest.mark.parametrize("posterior", ["swag", "sgmcmc"])
def test_weights_of_one_change_nothing(posterior: str) -> None:
    options: dict[str, Any] = {
        "likelihood": bs.Gaussian(0.3), "prior_precision": 0.5, "generator": 0, "progress": False,
    }  # fmt: skip
    options |= {"epochs": 3, "lr": 1e-3} if posterior == "swag" else {"chains": 2, "draws": 4, "lr": 1e-5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q, expected = (
            getattr(bs, posterior)(mlp(2), data, **options) for data in ((x, numbers, torch.ones(ROWS)), (x, numbers))
        )
    torch.testing.assert_close(q.mean, expected.mean, rtol=1e-9, atol=1e-9)
    assert q.likelihood == expected.likelihood


@IGNORE_MODE
def test_evidence_while_training_is_that_of_repeated_rows() -> None:
    options: dict[str, Any] = {
        "likelihood": "categorical", "epochs": 4, "burn_in": 1, "every": 1, "lr": 1e-2, "batch_size": 100,
        "generator": 0, "progress": False,
    }  # fmt: skip
    q, expected = (bs.fit_evidence(mlp(3), data, **options) for data in ((x, labels, weights), repeated(x, labels)))
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence(), rtol=1e-5, atol=1e-5)


class Triples(Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        if row >= ROWS:
            raise IndexError
        return {"input": x[row]}, labels[row], weights[row]


def collated(rows: Any) -> Any:
    return default_collate(rows)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(x, labels, weights, strict=True))


LISTED = [(x[:4], labels[:4], weights[:4]), (x[4:], labels[4:], weights[4:])]


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(x, labels, weights),
        DataLoader(TensorDataset(x, labels, weights), batch_size=5),
        DataLoader(Triples(), batch_size=5),
        DataLoader(Triples(), batch_size=5, collate_fn=collated),
        Triples(),
        Stream(),
        DataLoader(Stream(), batch_size=4),
        LISTED,
        (x.numpy(), labels.tolist(), weights.numpy()),
    ],
)
def test_every_form_of_data_has_weights(data: Any) -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 0.7}
    q, expected = bs.laplace(mlp(3), data, **options), bs.laplace(mlp(3), repeated(x, labels), **options)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence(), rtol=1e-9, atol=1e-9)


def test_held_out_rows_and_new_rows_may_have_weights() -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 0.7}
    q = bs.laplace(mlp(3), (x, labels), **options)
    tuned, expected = (
        bs.tune_prior(q, method="validation", data=data) for data in ((x, labels, weights), repeated(x, labels))
    )
    torch.testing.assert_close(tuned.sd, expected.sd, rtol=1e-6, atol=1e-9)
    after, right = q.condition((x, labels, weights)), q.condition(repeated(x, labels))
    torch.testing.assert_close(after.mean, right.mean, rtol=1e-4, atol=1e-5)
    again = after.condition((x, labels))
    assert again.log_evidence().isfinite()


def test_a_saved_posterior_counts_rows_once(tmp_path: Any) -> None:
    q = bs.laplace(mlp(3), (x, labels, weights), likelihood="categorical", prior_precision=0.7)
    loaded: Any = bs.load(q.save(tmp_path / "q.bayes"))
    torch.testing.assert_close(loaded.predict(x).log_prob(labels), q.predict(x).log_prob(labels), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((x, labels, -weights), InputError, r"at least 0, got -1 in row 0.*several inputs go into a tuple"),
        ((x, labels, weights[:5]), InputError, r"13 weights, one a row, got shape \(5,\)"),
        ((x, labels, torch.stack([weights, weights], 1)), InputError, r"got shape \(13, 2\)"),
        ((x, labels, 0 * weights), InputError, "some are positive"),
        ([LISTED[0], LISTED[1][:2]], InputTypeError, "triples"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bs.laplace(mlp(3), data, likelihood="categorical")


def test_two_inputs_are_not_taken_for_weights() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(3)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            out: Tensor = self.body(first + second)
            return out

    with pytest.raises(InputError, match=r"Several inputs go into a tuple: \(\(x1, x2\), y\)"):
        bs.laplace(Two(), (x, labels, labels), likelihood="categorical")
    q = bs.laplace(Two(), ((x, x), labels, weights), likelihood="categorical", prior_precision=1.0)
    expected = bs.laplace(Two(), (repeated(x, x), *repeated(labels)), likelihood="categorical", prior_precision=1.0)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence())


def test_a_validation_has_weights_where_the_data_have() -> None:
    options: dict[str, Any] = {"likelihood": "categorical", "epochs": 1, "lr": 1e-2, "progress": False}
    bs.fit_map(mlp(3), (x, labels, weights), validation=(x, labels, weights), **options)
    for data, validation in (((x, labels), (x, labels, weights)), ((x, labels, weights), (x, labels))):
        with pytest.raises(InputError, match="where the data are triples"):
            bs.fit_map(mlp(3), data, validation=validation, **options)


def test_a_noise_that_dropout_would_learn_from_weighted_rows_is_refused() -> None:
    module = seeded(lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.1), nn.Linear(4, 2)))
    with pytest.raises(UnsupportedError, match="rows with weights"):
        bs.mc_dropout(module, (x, numbers, weights), likelihood=bs.Gaussian("evidence"), epochs=1, progress=False)


@IGNORE_MODE
def test_a_summary_tells_of_the_weights_of_the_rows() -> None:
    """Their sum and the rows that count for nothing, in the fit and in trainings; nothing of pairs."""
    network, options = mlp(3), {"likelihood": "categorical", "prior_precision": 1.0}
    trained: dict[str, Any] = {**options, "epochs": 1, "progress": False}
    some = torch.where(weights > 0, weights, 0.5)
    for data, line in (
        ((x, labels, weights), "row weights: sum 19, 2 rows of weight 0\n"),
        (
            [(x[:7], labels[:7], weights[:7]), (x[7:], labels[7:], some[7:])],
            "row weights: sum 19.5, 1 row of weight 0\n",
        ),
        ((x, labels, some), "row weights: sum 20\n"),
    ):
        q = bs.laplace(network, data, **options)
        assert line in q.summary()
        assert "row weights" not in q.condition((x, labels)).summary()
        for fit in (bs.fit_map, bs.variational):
            assert line in fit(network, data, **trained).summary()
        assert line in bs.ensemble(lambda: mlp(3), data, members=2, **trained).summary()
    assert "row weights" not in bs.laplace(network, (x, labels), **options).summary()
    assert "row weights" not in bs.fit_map(network, (x, labels), **trained).summary()
