"""Data as Hugging Face's libraries give them: rows that are dicts of lists, padding collators, ignored labels."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import bayescope as bs
from bayescope.errors import InputError
from tests.curvature.cases import fill

TEXTS = [[1, 4, 5], [1, 6], [1, 7, 8, 9, 2], [1, 3], [1, 9, 4, 4], [1, 5, 5], [1, 2, 3, 6]]
LONGEST, CLASSES = 5, 3
NO_MODE = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # these weights are random


class Rows:
    """What stands for ``datasets.Dataset``: a length, and rows by their places that are dicts of lists."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.rows[place]


def row(place: int, *, tokens: bool = False) -> dict[str, Any]:
    text = TEXTS[place]
    labels = [token % CLASSES for token in text] if tokens else place % CLASSES
    return {
        "input_ids": text, "token_type_ids": [0] * len(text), "attention_mask": [1] * len(text), "labels": labels,
    }  # fmt: skip


def padded(place: int) -> dict[str, Any]:
    more = [0] * (LONGEST - len(TEXTS[place]))
    return {name: value + more if isinstance(value, list) else value for name, value in row(place).items()}


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="pip install 'bayescope[dev]' brings transformers")


@pytest.fixture(scope="module")
def tokenizer(transformers: Any) -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="it comes with transformers")
    words = {"[PAD]": 0, **{str(number): number for number in range(1, 10)}}
    known = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[PAD]"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=known, pad_token="[PAD]")


def model(transformers: Any, kind: str) -> nn.Module:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        config = transformers.BertConfig(
            vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=6,
            max_position_embeddings=8, num_labels=CLASSES, pad_token_id=0, attn_implementation="eager",
        )  # fmt: skip
        made = getattr(transformers, kind)(config)
    return fill(made, torch.Generator().manual_seed(1))


def loader(rows: list[dict[str, Any]], collate: Any, size: int) -> DataLoader[Any]:
    return DataLoader(rows, batch_size=size, collate_fn=collate, generator=torch.Generator())  # type: ignore[arg-type]


@NO_MODE
@pytest.mark.filterwarnings("ignore:You're using a:UserWarning")
def test_texts_of_other_lengths_give_the_answer_of_padded_ones(transformers: Any, tokenizer: Any) -> None:
    module = model(transformers, "BertForSequenceClassification")
    collate = transformers.DataCollatorWithPadding(tokenizer)
    options: dict[str, Any] = {
        "likelihood": "categorical", "structure": "full", "weights": ["classifier.*", "*.pooler.*"],
        "prior_precision": 0.5,
    }  # fmt: skip
    ragged = loader([row(place) for place in range(7)], collate, 2)
    lengths = {batch["input_ids"].shape[1] for batch in ragged}
    assert len(lengths) > 1
    q = bs.laplace(module, ragged, **options)
    expected = bs.laplace(module, Rows([padded(place) for place in range(7)]), **options)
    torch.testing.assert_close(q.log_evidence(), expected.log_evidence(), rtol=1e-6, atol=1e-6)
    p, right = q.predict(ragged), expected.predict(Rows([padded(place) for place in range(7)]))
    torch.testing.assert_close(p.mean, right.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(p.epistemic, right.epistemic, rtol=1e-5, atol=1e-6)
    without = loader([{k: v for k, v in row(place).items() if k != "labels"} for place in range(7)], collate, 3)
    torch.testing.assert_close(q.predict(without).mean, p.mean, rtol=1e-6, atol=1e-6)


@NO_MODE
def test_the_trainers_default_collator_gives_data(transformers: Any) -> None:
    module = model(transformers, "BertForSequenceClassification")
    rows = [padded(place) for place in range(7)]
    batches = loader(rows, transformers.default_data_collator, 4)
    options: dict[str, Any] = {"likelihood": "categorical", "weights": "last_layer", "prior_precision": 0.5}
    one, other = bs.laplace(module, batches, **options), bs.laplace(module, Rows(rows), **options)
    torch.testing.assert_close(one.log_evidence(), other.log_evidence(), rtol=1e-6, atol=1e-6)
    trained = bs.fit_map(
        module, Rows(rows), likelihood="categorical", epochs=1, lr=1e-4, batch_size=3, progress=False, generator=0
    )
    torch.testing.assert_close(trained.predict(batches).mean, trained.predict(Rows(rows)).mean, rtol=1e-6, atol=1e-6)


@NO_MODE
@pytest.mark.filterwarnings("ignore:You're using a:UserWarning")
def test_ignored_tokens_are_left_out(transformers: Any, tokenizer: Any) -> None:
    module = model(transformers, "BertForTokenClassification")
    collate = transformers.DataCollatorForTokenClassification(tokenizer)
    ragged = loader([row(place, tokens=True) for place in range(7)], collate, 2)
    options: dict[str, Any] = {"structure": "full", "weights": "last_layer", "prior_precision": 0.5}
    with pytest.raises(InputError, match=r"got -100 .*bs\.Categorical\(ignored=-100\)"):
        bs.laplace(module, ragged, likelihood="categorical", **options)
    q = bs.laplace(module, ragged, likelihood=bs.Categorical(ignored=-100), **options)
    # The reference: the sum over all tokens of texts that are read one by one, without padding.
    total = torch.zeros((), dtype=torch.float64)
    for place in range(7):
        one = {name: torch.tensor([value]) for name, value in row(place, tokens=True).items()}
        labels: Tensor = one.pop("labels")
        total -= nn.functional.cross_entropy(module.eval()(**one).logits[0], labels[0], reduction="sum").detach()
    fit: Any = q.fit
    torch.testing.assert_close(fit.curvature.log_likelihood, total, rtol=1e-6, atol=1e-6)


def test_columns_that_are_no_numbers_are_named() -> None:
    with pytest.raises(bs.errors.InputTypeError, match="Encode text"):
        bs.laplace(nn.utils.skip_init(nn.Linear, 2, 2), Rows([{"text": "a", "labels": 0}]), likelihood="categorical")
