"""The posteriors that callbacks find at the end of trainings by Lightning and by transformers, with these packages."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import bayescope as bs
from bayescope.errors import BayescopeWarning, InputError, OptionError, UndefinedQuantityError
from bayescope.integrations import LightningPosterior, TrainerPosterior

# Weights after a few steps are no mode, and what trainers say of themselves is theirs.
pytestmark = [
    pytest.mark.global_rng,
    pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:::lightning"),
    pytest.mark.filterwarnings("ignore:::accelerate"),
    pytest.mark.filterwarnings("ignore:::transformers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
ROWS, CLASSES, TOKENS = 11, 3, 6
OPTIONS: dict[str, Any] = {"structure": "full", "prior_precision": 2.0}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without the lines that trainers log."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 2, generator=generator), torch.randint(CLASSES, (ROWS,), generator=generator)


# --- Lightning --------------------------------------------------------------------------------------------------------


def lightning_module(inside: bool) -> Any:
    """A module whose network is an attribute, which ``forward`` calls or hides."""
    lightning = pytest.importorskip("lightning.pytorch", reason="pip install 'bayescope[dev]' brings lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, CLASSES))

        def forward(self, x: Tensor) -> Any:
            return {"probabilities": self.network(x).softmax(-1)} if inside else self.network(x)

        def training_step(self, batch: Any, _: int) -> Tensor:
            x, y = batch
            return nn.functional.cross_entropy(self.network(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    return Classifier()


def fitted(callback: LightningPosterior, folder: Path, *, inside: bool = False, **loading: Any) -> Any:
    import lightning.pytorch as lightning

    module = lightning_module(inside)
    trainer = lightning.Trainer(
        max_epochs=2, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(*rows()), **({"batch_size": 4, "shuffle": True} | loading)))
    return module


@pytest.mark.parametrize("inside", [False, True])
def test_lightning(inside: bool, tmp_path: Path) -> None:
    """The posterior at the last weights, as it is found of the network and all rows by hand; the module stays."""
    callback = LightningPosterior(likelihood="categorical", module="network" if inside else None, **OPTIONS)
    with pytest.raises(UndefinedQuantityError, match="Train first"):
        _ = callback.posterior
    module = fitted(callback, tmp_path, inside=inside)
    assert module.training
    assert all(parameter.grad is not None for parameter in module.parameters())
    before = copy.deepcopy(module.network.state_dict())
    want = bs.laplace(module.network, rows(), likelihood="categorical", **OPTIONS)
    q = callback.posterior
    assert torch.allclose(q.predict(rows()[0]).probs, want.predict(rows()[0]).probs, atol=1e-6)
    assert torch.allclose(q.log_evidence(), want.log_evidence(), rtol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in module.network.state_dict().items())


class Picked(Sampler[int]):
    """Three rows of a data set."""

    def __iter__(self) -> Iterator[int]:
        return iter([1, 4, 7])

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("loading", "taken"),
    [
        ({"drop_last": True}, ROWS),
        ({"drop_last": True, "shuffle": False}, ROWS),
        ({"batch_size": None}, ROWS),
        ({"shuffle": False, "sampler": Picked()}, 3),
    ],
    ids=["shuffled", "last rows dropped", "row by row", "selected"],
)
def test_a_posterior_of_all_rows_that_the_loader_has(loading: dict[str, Any], taken: int, tmp_path: Path) -> None:
    """Rows that a loader drops count; those that a sampler does not select do not."""
    callback = LightningPosterior(likelihood="categorical", **OPTIONS)
    if loading.get("batch_size", 4) is None:
        loading = loading | {"collate_fn": lambda row: (row[0][None], row[1][None])}
    module = fitted(callback, tmp_path, **loading)
    x, y = (values if taken == ROWS else values[[1, 4, 7]] for values in rows())
    want = bs.laplace(module.network, (x, y), likelihood="categorical", **OPTIONS)
    assert torch.allclose(callback.posterior.log_evidence(), want.log_evidence(), rtol=1e-5)


def test_another_function_and_other_data(tmp_path: Path) -> None:
    x, y = rows()
    callback = LightningPosterior(
        likelihood="categorical", fit=bs.swag, data=(x[:8], y[:8]), epochs=3, batch_size=2, generator=0, progress=False
    )
    fitted(callback, tmp_path)
    assert "swag" in callback.posterior.summary()
    assert "8" in callback.posterior.summary()


def test_a_posterior_that_cannot_be_found_leaves_the_training(tmp_path: Path) -> None:
    callback = LightningPosterior(likelihood="categorical", module="net", **OPTIONS)
    with pytest.warns(BayescopeWarning, match=r"its posterior could not be found: .*'net'"):
        module = fitted(callback, tmp_path)
    with pytest.raises(OptionError, match="network"):
        _ = callback.posterior
    assert module.trainer.state.finished


def test_a_likelihood_that_is_unknown_is_refused_before_the_training() -> None:
    pytest.importorskip("lightning.pytorch", reason="pip install 'bayescope[dev]' brings lightning")
    with pytest.raises(OptionError):
        LightningPosterior(likelihood="catgorical")


def test_an_option_that_the_function_does_not_take_is_refused_before_the_training() -> None:
    pytest.importorskip("lightning.pytorch", reason="pip install 'bayescope[dev]' brings lightning")
    with pytest.raises(OptionError, match=r"options: .* got 'weigths'.* Did you mean 'weights'"):
        LightningPosterior(likelihood="categorical", weigths="last_layer")
    with pytest.raises(OptionError, match=r"options: .* got 'structure'"):
        LightningPosterior(likelihood="categorical", fit=bs.swag, structure="kfac")


def test_an_error_of_any_kind_leaves_the_training(tmp_path: Path) -> None:
    def fit(*_: Any, **__: Any) -> Any:
        raise MemoryError("there is no room")

    callback = LightningPosterior(likelihood="categorical", fit=fit)
    with pytest.warns(BayescopeWarning, match=r"its posterior could not be found: there is no room"):
        module = fitted(callback, tmp_path)
    with pytest.raises(MemoryError, match="no room"):
        _ = callback.posterior
    assert module.trainer.state.finished


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def bert(kind: str, labels: int) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="pip install 'bayescope[dev]' brings transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=6,
        max_position_embeddings=7, pad_token_id=0, num_labels=labels,
    )  # fmt: skip
    return getattr(transformers, kind)(config)


def texts(label: Callable[[int, Tensor], dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as Trainer's data sets have them: texts of one length, one of them padded, and labels."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for row in range(ROWS):
        tokens = torch.randint(1, 11, (TOKENS,), generator=generator)
        mask = torch.ones_like(tokens)
        mask[4:] = row != 3
        found.append({"input_ids": tokens * mask, "attention_mask": mask, **label(row, mask)})
    return found


TASKS: dict[str, tuple[str, int, Callable[[int, Tensor], dict[str, Any]], Any, dict[str, Any]]] = {
    "texts": ("BertForSequenceClassification", CLASSES, lambda row, _: {"label": row % CLASSES},
              bs.Categorical(), {}),
    "tokens": ("BertForTokenClassification", CLASSES,
               lambda row, mask: {"labels": torch.where(mask > 0, row % CLASSES, -100)},
               bs.Categorical(ignored=-100), {}),
    "answers": ("BertForQuestionAnswering", 2, lambda row, _: {"start_positions": row % 3, "end_positions": 3},
                bs.Categorical(), {"output": ("start_logits", "end_logits")}),
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_trainer(task: str, tmp_path: Path) -> None:
    """Through ``accelerate``, as Trainer prepares models and loaders; all rows count once."""
    kind, labels, label, likelihood, options = TASKS[task]
    model, data = bert(kind, labels), texts(label)
    callback = TrainerPosterior(likelihood=likelihood, weights="last_layer", **OPTIONS, **options)
    trained(model, data, callback, tmp_path)
    assert model.training
    q = callback.posterior
    batch = {name: torch.stack([torch.as_tensor(row[name]) for row in data]) for name in data[0]}
    inputs = {name: batch.pop(name) for name in ("input_ids", "attention_mask")}
    targets = torch.stack(list(batch.values()), 1) if len(batch) > 1 else next(iter(batch.values()))
    want = bs.laplace(
        model, {**inputs, "labels": targets}, likelihood=likelihood, weights="last_layer", **OPTIONS, **options
    )
    assert torch.allclose(q.log_evidence(), want.log_evidence(), rtol=1e-5)
    assert torch.allclose(q.predict(inputs).probs, want.predict(inputs).probs, atol=1e-6)
    assert q.predict(inputs).probs.shape[1:-1] == targets.shape[1:]


def test_labels_that_the_trainer_does_not_know(tmp_path: Path) -> None:
    """A model that computes its loss of what is called otherwise: the training stays, and the message has the names."""
    model = bert("BertForSequenceClassification", CLASSES)
    forward = model.forward

    def renamed(kinds: Tensor, **inputs: Tensor) -> Any:
        return forward(labels=kinds, **inputs)

    model.forward = renamed  # type: ignore[method-assign]
    data = texts(lambda row, _: {"kinds": row % CLASSES})
    callback = TrainerPosterior(likelihood="categorical", **OPTIONS)
    with pytest.warns(BayescopeWarning, match="could not be found: data: expected labels"):
        trained(model, data, callback, tmp_path)
    with pytest.raises(InputError, match="label_names"):
        _ = callback.posterior


def trained(model: nn.Module, data: list[dict[str, Any]], callback: TrainerPosterior, folder: Path) -> None:
    import transformers

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=4, report_to="none", save_strategy="no",
        logging_strategy="no", disable_tqdm=True, use_cpu=True, dataloader_drop_last=True, remove_unused_columns=False,
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()  # type: ignore[arg-type]


def test_a_callback_is_one_of_its_package() -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bayescope[dev]' brings transformers")
    callback = TrainerPosterior(likelihood="categorical")
    assert isinstance(callback, transformers.TrainerCallback)
    assert isinstance(callback, TrainerPosterior)
    assert type(copy.copy(callback)) is type(callback) is type(TrainerPosterior(likelihood="gaussian"))
