"""Predictions at the inputs of a loader, a data set or a list of batches: those at all rows at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bayescope as bs
from bayescope.errors import BayescopeWarning, InputError, InputTypeError
from bayescope.posterior import gaussian
from tests.laplace.problems import mlp, normal

x, y = normal(23, 2, seed=1), torch.arange(23) % 3
x_new = normal(11, 2, seed=2)
y_new = torch.arange(11) % 3
Q = bs.laplace(mlp(3), (x, y), likelihood="categorical", prior_precision=0.7, structure="full")


class Dicts(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index >= 11:
            raise IndexError
        return {"input": x_new[index], "label": y_new[index]}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(x_new, y_new, strict=True))


def batches() -> Iterator[Any]:
    yield from (x_new[rows : rows + 4] for rows in range(0, 12, 4))


FORMS: dict[str, Any] = {
    "loader of pairs": DataLoader(TensorDataset(x_new, y_new), batch_size=4),
    "loader of triples": DataLoader(TensorDataset(x_new, y_new, y_new), batch_size=11),
    "loader of inputs alone": DataLoader(TensorDataset(x_new), batch_size=1),
    "loader of tensors": DataLoader(x_new, batch_size=3),  # type: ignore[arg-type]
    "loader of a stream": DataLoader(Stream(), batch_size=5),
    "stream": Stream(),
    "data set": TensorDataset(x_new, y_new),
    "data set of dicts": Dicts(),
    "list of pairs": [(x_new[:4], y_new[:4]), (x_new[4:4], y_new[4:4]), (x_new[4:], y_new[4:])],
    "list of dicts": [{"input": x_new[:7], "labels": y_new[:7]}, {"input": x_new[7:]}],
    "iterator": batches(),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_answer_for_all_rows_at_once(name: str) -> None:
    p, expected = Q.predict(FORMS[name]), Q.predict(x_new)
    for question in ("mean", "epistemic", "aleatoric", "latent_mean", "latent_cov", "mutual_information"):
        found, right = getattr(p, question), getattr(expected, question)
        assert isinstance(found, Tensor)
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)
    assert p.notes == expected.notes
    assert p.shape == expected.shape


def network_posteriors() -> dict[str, Any]:
    common: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 0.7}
    short: dict[str, Any] = {**common, "epochs": 2, "lr": 1e-3, "generator": 0, "progress": False}
    dropped = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 3)).double()
    dropped.load_state_dict(dict(zip(dropped.state_dict(), mlp(3).state_dict().values(), strict=True)))
    return {
        "gaussian": Q,
        "kfac, last layer": bs.laplace(mlp(3), (x, y), weights="last_layer", **common),
        "mean field": bs.variational(mlp(3), (x, y), **short),
        "mixture": bs.laplace([mlp(3), mlp(3, seed=1)], (x, y), **common),
        "point": bs.fit_map(mlp(3), (x, y), **short),
        "draws": bs.ensemble([mlp(3), mlp(3, seed=1)], (x, y), **short),
        "passes": bs.mc_dropout(dropped, likelihood="categorical"),
    }


@pytest.fixture(scope="module")
def posteriors() -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        return network_posteriors()


NAMES = ("gaussian", "kfac, last layer", "mean field", "mixture", "point", "draws", "passes")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 4, 11])
def test_draws_are_those_for_all_rows_at_once(posteriors: dict[str, Any], name: str, size: int) -> None:
    q, loader = posteriors[name], DataLoader(TensorDataset(x_new, y_new), batch_size=size)
    options: dict[str, Any] = {} if name == "point" else {"samples": 7}
    if name in ("gaussian", "kfac, last layer", "mean field", "mixture"):
        options["method"] = "sampled"
    one, all_rows = q.predict(loader, generator=3, **options), q.predict(x_new, generator=3, **options)
    torch.testing.assert_close(one.mean, all_rows.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.epistemic, all_rows.epistemic, rtol=1e-9, atol=1e-9)
    functions, expected = (q.sample_functions(inputs, 3, generator=5) for inputs in (loader, x_new))
    assert functions.shape == (3, 11, 3)
    torch.testing.assert_close(functions, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "mixture"])
def test_monte_carlo_integrals_draw_as_for_all_rows(posteriors: dict[str, Any], name: str) -> None:
    q, loader = posteriors[name], DataLoader(TensorDataset(x_new), batch_size=4)
    source, again = (torch.Generator().manual_seed(8) for _ in range(2))
    one = q.predict(loader, integral="monte_carlo", samples=9, generator=source)
    expected = q.predict(x_new, integral="monte_carlo", samples=9, generator=again)
    torch.testing.assert_close(one.mean, expected.mean, rtol=1e-9, atol=1e-9)
    assert torch.equal(source.get_state(), again.get_state())


@pytest.mark.parametrize("integral", ["mackay", "quadrature"])
def test_top_classes_of_all_rows(integral: Any) -> None:
    loader = DataLoader(TensorDataset(x_new), batch_size=4)
    one, expected = (Q.predict(inputs, top=2, integral=integral) for inputs in (loader, x_new))
    assert torch.equal(torch.as_tensor(one.classes), torch.as_tensor(expected.classes))
    torch.testing.assert_close(one.mean, expected.mean, rtol=1e-9, atol=1e-9)


def test_top_classes_with_others_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, "EVERY_CLASS", 2)
    loader = DataLoader(TensorDataset(x_new), batch_size=4)
    one, expected = (Q.predict(inputs, top=1) for inputs in (loader, x_new))
    torch.testing.assert_close(one.mean, expected.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(one.latent_cov, expected.latent_cov, rtol=1e-9, atol=1e-9)
    assert one.notes == expected.notes


def test_variances_alone_are_kept_where_all_covariances_would_be_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, "COVARIANCE_BYTES", 8 * 9 * 9)  # nine rows of three outputs
    loader = DataLoader(TensorDataset(x_new), batch_size=4)
    one, expected = (Q.predict(inputs, integral="mackay") for inputs in (loader, x_new))
    torch.testing.assert_close(one.mean, expected.mean, rtol=1e-9, atol=1e-9)
    for p in (one, expected):
        with pytest.raises(bs.errors.UnsupportedError, match="covariances between outputs"):
            _ = p.latent_cov
    fewer = DataLoader(TensorDataset(x_new[:8]), batch_size=4)
    assert Q.predict(fewer, integral="mackay").latent_cov.shape == (8, 3, 3)


def test_arrays_in_arrays_out() -> None:
    p = Q.predict([(x_new[:4].numpy(), y_new[:4].numpy()), (x_new[4:].numpy(), y_new[4:].numpy())])
    assert isinstance(p.mean, np.ndarray)


def test_a_list_of_rows_is_no_list_of_batches() -> None:
    assert Q.predict(x_new.tolist()).mean.shape == (11, 3)
    assert Q.predict([tuple(row) for row in x_new.tolist()]).mean.shape == (11, 3)
    assert Q.predict(list(x_new)).mean.shape == (11, 3)


@pytest.mark.parametrize("listed", [[x_new[:4], x_new[4:8]], [x_new.numpy()], [x_new[:4], x_new[4:]]])
def test_a_list_of_bare_batches_is_refused(listed: list[Any]) -> None:
    """It would be read as one array with an axis more, of which a linear layer makes positions."""
    with pytest.raises(InputTypeError, match=r"got a list of bare arrays\. Join batches by torch\.cat"):
        Q.predict(listed)


def test_a_query_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    Q.predict(DataLoader(TensorDataset(x_new), batch_size=4))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_shuffling_loader_is_warned_of() -> None:
    with pytest.warns(BayescopeWarning, match="shuffle=False"):
        p = Q.predict(DataLoader(TensorDataset(x_new), batch_size=4, shuffle=True))
    torch.testing.assert_close(p.mean.sum(0), Q.predict(x_new).mean.sum(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (DataLoader(TensorDataset(x_new[:0]), batch_size=4), InputError, "at least one row"),
        ([(x_new, y_new, y_new, y_new)], InputTypeError, r"\(\(x1, x2\), y\)"),
        ([{"input": x_new, "label": y_new, "y": y_new}], InputError, "'label' and 'y'"),
        ((TensorDataset(x_new),), InputTypeError, "expected arrays or tensors"),
    ],
)
def test_what_cannot_be_read_says_why(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Q.predict(given)


def test_batches_of_other_lengths_have_no_common_answer() -> None:
    position_wise = bs.laplace(mlp(3), (x.expand(4, 23, 2), y.expand(4, 23)), likelihood="categorical")
    with pytest.raises(InputError, match=r"same positions, got \(4,\) and \(5,\)"):
        position_wise.predict([(normal(2, 4, 2, seed=3),), (normal(2, 5, 2, seed=3),)])
    p = position_wise.predict([(normal(2, 4, 2, seed=3),), (normal(1, 4, 2, seed=4),)])
    assert p.shape == (3, 4)
