"""Which part of what a module returns is f: models of transformers and modules like theirs, against dense matrices."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError, InputTypeError
from bayescope.network import call, with_output
from tests.curvature import reference
from tests.curvature.cases import DTYPE, Case, assert_close, fill, fit

NO_MODE = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # these weights are random
ROWS, TOKENS, CLASSES = 5, 6, 3
PRIOR = 3.0


class Picked(nn.Module):
    """f written out, for the reference."""

    def __init__(self, model: nn.Module, pick: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.pick = model, pick

    def forward(self, *args: Any, **named: Any) -> Tensor:
        return self.pick(self.model(*args, **named))


class Heads(nn.Module):
    """Two layers, whose hidden values, outputs and other things come back as a user has it."""

    def __init__(self, outputs: int, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.head, self.wrap = nn.Linear(2, 4), nn.Linear(4, outputs), wrap

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.body(x))
        return self.wrap(hidden, self.head(hidden))


def built(make: Callable[[], nn.Module], seed: int = 1) -> nn.Module:
    """A module with weights of its own, in float64."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fill(make(), torch.Generator().manual_seed(seed))


class Returning(nn.Module):
    """Returns the same, whatever it is given."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.returned = returned

    def forward(self, _: Tensor) -> Any:
        return self.returned


class Pixels(nn.Module):
    """What torchvision's models for segmentation return: two images of classes, channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(2, 4, 3, padding=1)
        self.aux, self.head = nn.Conv2d(4, CLASSES, 1), nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(x))
        return {"aux": self.aux(hidden), "out": self.head(hidden)}


class Problem(NamedTuple):
    """A module, its data, how f is chosen, what f is in words of torch, and whether its last layer is one layer."""

    module: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], Any]
    targets: tuple[int, ...]
    classes: int
    options: dict[str, Any]
    pick: Callable[[Any], Tensor]
    head: bool = True


def bert(kind: str, labels: int) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="pip install 'bayescope[dev]' brings transformers")
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=6,
        max_position_embeddings=7, pad_token_id=0, num_labels=labels,
    )  # fmt: skip
    return getattr(transformers, kind)(config)


def segformer() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="pip install 'bayescope[dev]' brings transformers")
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[4, 6], patch_sizes=[3, 3],
        strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[1, 1], decoder_hidden_size=5, num_labels=CLASSES,
    )  # fmt: skip
    return transformers.SegformerForSemanticSegmentation(config)


def texts(generator: torch.Generator) -> dict[str, Tensor]:
    """Two of them are padded."""
    tokens = torch.randint(1, 11, (ROWS, TOKENS), generator=generator)
    mask = torch.ones_like(tokens)
    mask[1, 4:] = mask[3, 3:] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def numbers(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(ROWS, *shape, generator=generator, dtype=DTYPE)


def pixels(f: Tensor) -> Tensor:
    """(N, C, H, W) as (N, H W, C)."""
    return f.flatten(2).mT


HEADS = ("start_logits", "end_logits")
PROBLEMS = {
    "tokens": Problem(
        lambda: bert("BertForTokenClassification", CLASSES), texts, (TOKENS,), CLASSES, {}, lambda out: out.logits
    ),
    "answers": Problem(
        lambda: bert("BertForQuestionAnswering", 2), texts, (2,), TOKENS, {"output": HEADS},
        lambda out: torch.stack([out.start_logits, out.end_logits], 1), head=False,
    ),
    "segformer": Problem(
        segformer, lambda generator: {"pixel_values": numbers(3, 8, 12)(generator)}, (4, 6), CLASSES,
        {"classes_dim": 1}, lambda out: pixels(out.logits),
    ),
    "pixels": Problem(
        Pixels, numbers(2, 3, 4), (3, 4), CLASSES, {"output": "out", "classes_dim": 1}, lambda out: pixels(out["out"])
    ),
    "tuple": Problem(
        lambda: Heads(CLASSES, lambda h, f: (h, f, None)), numbers(2), (), CLASSES, {"output": 1}, lambda out: out[1]
    ),
    "squeezed": Problem(
        lambda: Heads(1, lambda _, f: f.squeeze(-1)), numbers(2), (), 1, {}, lambda f: f[:, None]
    ),
}  # fmt: skip


def made(name: str) -> tuple[Case, Case, dict[str, Any]]:
    """The case as a user has it, and with f written out, for the reference; the options."""
    problem, generator = PROBLEMS[name], torch.Generator().manual_seed(1)
    module = built(problem.module)
    for part in module.modules():
        part.training = False  # batch norm's statistics stay what they are
    inputs, categorical = problem.inputs(generator), problem.classes > 1
    shape = (ROWS, *problem.targets)
    targets = torch.randint(max(2, problem.classes), shape, generator=generator)
    if name == "tokens":
        targets[inputs["attention_mask"] == 0] = -100
    likelihood = bs.Categorical(ignored=-100) if categorical else bs.Bernoulli()
    plain = targets.flatten(1) if targets.ndim > 1 else targets
    given = Case(module, inputs, targets, likelihood)
    return given, Case(Picked(module, problem.pick), inputs, plain, likelihood), problem.options


def data(case: Case) -> Any:
    return {**case.inputs, "labels": case.targets} if isinstance(case.inputs, dict) else (case.inputs, case.targets)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_curvature_is_that_of_the_chosen_output(name: str) -> None:
    mine, plain, options = made(name)
    found = fit(mine, "full", **options)
    assert_close(found.precision.to_dense(), reference.full(plain, "ggn"))
    f = reference.outputs(plain)
    want = sum(
        reference.log_prob(plain.likelihood, each, y)
        for each, y in zip(f.flatten(0, -2), plain.targets.flatten(), strict=True)
    )
    assert_close(found.log_likelihood, torch.as_tensor(want))
    assert found.network.weights.names == tuple(name for name, _ in mine.module.named_parameters())


@NO_MODE
@pytest.mark.parametrize("name", PROBLEMS)
def test_predictions_of_a_last_layer_and_of_its_file(name: str, tmp_path: Path) -> None:
    """The names of its weights are those of the caller's module, which a file is opened with."""
    mine, plain, options = made(name)
    before = copy.deepcopy(mine.module.state_dict())
    q = bs.laplace(
        mine.module, data(mine), likelihood=mine.likelihood, weights="last_layer", structure="full",
        prior_precision=PRIOR, **options,
    )  # fmt: skip
    assert q.function.network.head == PROBLEMS[name].head
    places = torch.cat(
        [reference.positions(plain.module)[f"model.{each}"].flatten() for each in q.function.weights.names]
    )
    j = reference.jacobian(plain)[..., places]
    curvature = reference.full(plain, "ggn")[places[:, None], places]
    covariance = j @ torch.linalg.solve(curvature + PRIOR * torch.eye(len(places), dtype=DTYPE), j.mT)
    f = reference.outputs(plain)
    if f.ndim == 3:  # each position by itself
        covariance = covariance.unflatten(2, f.shape[1:]).unflatten(1, f.shape[1:]).diagonal(dim1=1, dim2=3)
        covariance = covariance.movedim(-1, 1)
    p = q.predict(mine.inputs)
    assert_close(p.latent_cov.reshape(covariance.shape), covariance)
    assert_close(p.latent_mean.reshape(f.shape), f)
    assert p.latent_mean.shape == (ROWS, *PROBLEMS[name].targets, PROBLEMS[name].classes)

    q.save(tmp_path / "q.bayes")
    opened = bs.load(tmp_path / "q.bayes", model=mine.module)
    assert torch.equal(opened.predict(mine.inputs).latent_cov, p.latent_cov)
    assert all(torch.equal(value, before[key]) for key, value in mine.module.state_dict().items())
    assert type(q.model(**mine.inputs) if isinstance(mine.inputs, dict) else q.model(mine.inputs)) is type(
        mine.module(**mine.inputs) if isinstance(mine.inputs, dict) else mine.module(mine.inputs)
    )


def test_a_described_network_keeps_its_choice_in_a_file(tmp_path: Path) -> None:
    """A network of torch's layers, which a file describes, so that no module is needed to open it."""
    generator = torch.Generator().manual_seed(0)
    module = built(lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, CLASSES, 1)))
    x, y = numbers(2, 3, 4)(generator), torch.randint(CLASSES, (ROWS, 3, 4), generator=generator)
    q = bs.fit_map(module, (x, y), likelihood="categorical", classes_dim=1, epochs=2, generator=0, progress=False)
    q.save(tmp_path / "q.bayes")
    p = bs.load(tmp_path / "q.bayes").predict(x)
    assert p.probs.shape == (ROWS, 3, 4, CLASSES)
    assert torch.equal(p.probs, q.predict(x).probs)


SEED: dict[str, Any] = {"generator": 0, "progress": False}
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "fit_map": (bs.fit_map, {"epochs": 3, **SEED}),
    "variational": (bs.variational, {"epochs": 3, **SEED}),
    "mc_dropout": (bs.mc_dropout, {"epochs": 3, "rate": 0.1, **SEED}),
    "ensemble": (lambda module, *args, **options: bs.ensemble([module, copy.deepcopy(module)], *args, **options),
                 {"epochs": 3, **SEED}),
    "swag": (bs.swag, {"epochs": 6, "batch_size": 2, **SEED}),
    "sgmcmc": (bs.sgmcmc, {"draws": 4, "burn_in": 1, "thin": 1, "batch_size": 2, **SEED}),
    "nuts": (bs.nuts, {"draws": 20, "tune": 20, "chains": 1, **SEED}),
    "fit_evidence": (bs.fit_evidence, {"epochs": 3, "burn_in": 1, **SEED}),
    "laplace": (bs.laplace, {}),
    "function_space": (bs.function_space, {}),
    "select": (lambda module, *args, **options: bs.select({"a": module}, *args, **options).best, {}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::bayescope.errors.BayescopeWarning")  # a few steps from random weights
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_reads_the_chosen_output(name: str) -> None:
    """As it reads the same network with that output written out; the caller's module stays as it is."""
    function, options = FUNCTIONS[name]
    mine, plain, _ = made("tuple")
    before = set(vars(mine.module))
    q = function(mine.module, data(mine), likelihood="categorical", output=1, **options)
    want = function(plain.module, data(mine), likelihood="categorical", **options)
    got, expected = (each.predict(mine.inputs, generator=0).probs for each in (q, want))
    assert got.shape == (ROWS, CLASSES)
    assert_close(got, expected)
    assert vars(mine.module).keys() == before
    assert isinstance(q.model(mine.inputs), tuple)


def test_plans_are_of_the_chosen_output() -> None:
    mine, plain, _ = made("tuple")
    got = bs.plan(mine.module, data(mine), likelihood="categorical", output=1)
    want = bs.plan(plain.module, data(mine), likelihood="categorical")
    assert (got.weights, got.curvature_bytes) == (want.weights, want.curvature_bytes)


@NO_MODE
def test_a_posterior_goes_on_with_its_choice() -> None:
    mine, _, _ = made("tuple")
    q = bs.fit_map(mine.module, data(mine), likelihood="categorical", output=1, **SEED)
    laplace = bs.laplace(q, data(mine), likelihood="categorical")
    assert_close(
        bs.laplace(q.model, data(mine), likelihood="categorical").predict(mine.inputs).probs,
        bs.laplace(q.model, data(mine), likelihood="categorical", output=1).predict(mine.inputs).probs,
    )
    for more in (laplace.condition(data(mine)), bs.tune_prior(laplace)):
        assert more.predict(mine.inputs).probs.shape == (ROWS, CLASSES)
    with pytest.raises(InputTypeError, match=r"output: expected .* got PointPosterior"):
        bs.laplace(q, data(mine), likelihood="categorical", output=1)


def test_inplace_trains_the_module_and_leaves_what_it_returns() -> None:
    mine, plain, _ = made("tuple")
    want = bs.fit_map(plain.module, data(mine), likelihood="categorical", epochs=3, **SEED)
    q = bs.fit_map(mine.module, data(mine), likelihood="categorical", epochs=3, output=1, inplace=True, **SEED)
    assert_close(q.mean, want.mean)
    assert_close(torch.cat([each.detach().flatten() for each in mine.module.parameters()]), want.mean)
    assert isinstance(mine.module(mine.inputs), tuple)


def test_a_module_that_squeezes_everything_takes_one_row() -> None:
    mine, plain, _ = made("squeezed")
    mine.module.wrap = lambda _, f: f.squeeze()
    assert call(mine.module, mine.inputs[:1]).shape == (1, 1)
    assert_close(fit(mine, "full").precision.to_dense(), reference.full(plain, "ggn"))


class Named(NamedTuple):
    loss: Tensor | None
    scores: Tensor


a, b = torch.arange(6.0).reshape(3, 2), -torch.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    ("returned", "options"),
    [
        ({"logits": a, "other": b}, {}),
        ((b, {"deep": {"logits": a}}), {}),
        ({"deep": {"logits": b}, "logits": a}, {}),
        (Named(b, a), {"output": "scores"}),
        ([{"loss": b}, Named(None, a)], {"output": "scores"}),
        (Named(b, a), {"output": -1}),
        ({"loss": None, "scores": a}, {"output": 1}),
        (SimpleNamespace(scores=a), {"output": "scores"}),
    ],
)
def test_where_f_may_be(returned: Any, options: dict[str, Any]) -> None:
    assert torch.equal(call(with_output(Returning(returned), options), a), a)


def test_classes_on_another_axis() -> None:
    f = torch.arange(24.0).reshape(2, 3, 4)
    for dim in (1, -2):
        assert torch.equal(call(with_output(Returning({"a": f}), {"output": "a", "classes_dim": dim}), a), f.mT)
    both = call(with_output(Returning((f, 2 * f)), {"output": [1, 0], "classes_dim": 1}), a)
    assert torch.equal(both, torch.stack([2 * f.mT, f.mT], 1))


def test_heads_of_one_number_are_the_columns_of_f() -> None:
    """As the mean and the logarithm of the variance are for bs.HeteroscedasticGaussian."""
    for wrap in (lambda _, f: (f[:, 0], f[:, 1]), lambda _, f: (f[:, :1], f[:, 1:])):
        module, x = built(lambda wrap=wrap: Heads(2, wrap)), numbers(2)(torch.Generator().manual_seed(1))
        f = call(with_output(module, {"output": (0, 1)}), x)
        assert torch.equal(f, module.head(torch.tanh(module.body(x))))


@pytest.mark.parametrize(
    ("returned", "options", "error", "message"),
    [
        ((a, b), {}, InputTypeError, r"that is a tensor or has `logits`, got tuple with 0 of shape \(3, 2\), 1 of"),
        ({"scores": a}, {"output": "score"}, InputTypeError, "that has a tensor 'score', got dict with 'scores' of"),
        ((a, b), {"output": 2}, InputTypeError, "has a tensor 2, got tuple"),
        (a, {"output": "real"}, InputTypeError, "has a tensor 'real', got Tensor"),
        (({"f": a}, {"f": b}), {"output": "f"}, InputTypeError, "got tuple with 2 of them"),
        ((a, b[:, :1]), {"output": (0, 1)}, InputError, r"heads of one shape .* torch.cat"),
        (a, {"classes_dim": 2}, InputError, r"classes_dim: expected an axis .* \(3, 2\), got 2"),
        (a, {"classes_dim": -2}, InputError, r"classes_dim: .* got -2"),
        (a, {"classes_dim": 0}, InputError, r"classes_dim: .* got 0"),
        (a, {"output": ()}, InputError, "at least one"),
        (a, {"output": 1.5}, InputTypeError, "the name of an entry"),
        (a, {"output": (None,)}, InputTypeError, "the name of an entry"),
    ],
)
def test_what_is_not_there_is_refused(returned: Any, options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(with_output(Returning(returned), options), a)
