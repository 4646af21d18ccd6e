"""Laplace over LoRA adapters (Hu et al. 2022) of Hugging Face language models, against the dense matrices."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescope as bs
from bayescope.errors import InputError
from tests.curvature import reference
from tests.curvature.cases import Case, assert_close, fill, fit
from tests.curvature.test_kronecker import definitions

VOCABULARY, WIDTH, LENGTH, CLASSES = 11, 8, 5, 3
NO_MODE = pytest.mark.filterwarnings("ignore::bayescope.errors.ConvergenceWarning")  # these weights are random
SIZES = {
    "gpt2": {"n_positions": 16, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2},
    "llama": {
        "hidden_size": WIDTH, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "max_position_embeddings": 16,
    },
}  # fmt: skip
ADAPTED = {"gpt2": ["c_attn", "c_proj"], "llama": ["q_proj", "v_proj", "down_proj"]}
TASKS = {"classes": "SEQ_CLS", "next token": "CAUSAL_LM"}
# Llama computes its norms and angles in float32, whatever its weights are.
TOLERANCES = {"gpt2": 1e-7, "llama": 1e-6}
CASES = [(architecture, task) for architecture in SIZES for task in TASKS]


class Logits(nn.Module):
    """The logits of a model that returns an output object, for the reference."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.model(**inputs).logits


def adapted(architecture: str, task: str) -> nn.Module:
    """A language model from its configuration alone, with adapters; only those require gradients."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        # Here, so that only the process that runs these tests takes seconds to import them.
        transformers = pytest.importorskip("transformers", reason="pip install 'bayescope[dev]' brings transformers")
        peft = pytest.importorskip("peft", reason="pip install 'bayescope[dev]' brings peft")
        settings = {"vocab_size": VOCABULARY, "pad_token_id": 0, "num_labels": CLASSES, **SIZES[architecture]}
        config = transformers.AutoConfig.for_model(architecture, **settings)
        kind = "AutoModelForSequenceClassification" if task == "classes" else "AutoModelForCausalLM"
        model = getattr(transformers, kind).from_config(config)
        lora = peft.LoraConfig(
            task_type=TASKS[task], r=2, lora_alpha=4, lora_dropout=0.1, target_modules=ADAPTED[architecture],
            fan_in_fan_out=architecture == "gpt2",
        )  # fmt: skip
        module: nn.Module = fill(peft.get_peft_model(model, lora), torch.Generator().manual_seed(1))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("lora" in name)
    return module


def batch(task: str) -> dict[str, Tensor]:
    """Five texts, two of them padded, as a dict; next tokens are the labels, −100 where there is none."""
    tokens = torch.randint(1, VOCABULARY, (5, LENGTH), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(tokens)
    mask[1, 3:] = mask[3, 2:] = 0
    tokens = tokens * mask
    labels = torch.arange(5) % CLASSES
    if task == "next token":
        labels = torch.full_like(tokens, -100)
        labels[:, :-1] = torch.where(mask[:, 1:] > 0, tokens[:, 1:], -100)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def problem(architecture: str, task: str) -> tuple[Case, Case]:
    """The case as a user has it, and with plain outputs, for the reference."""
    module, data = adapted(architecture, task), batch(task)
    inputs = {name: value for name, value in data.items() if name != "labels"}
    likelihood = bs.Categorical(ignored=-100) if task == "next token" else bs.Categorical()
    mine = Case(module, inputs, data["labels"], likelihood, "*lora*")
    return mine, Case(Logits(module), inputs, data["labels"], likelihood)


@pytest.mark.parametrize(("architecture", "task"), CASES)
def test_adapters_are_read_exactly(architecture: str, task: str) -> None:
    mine, plain = problem(architecture, task)
    assert_close(fit(mine, "full").precision.to_dense(), reference.full(plain, "ggn"), TOLERANCES[architecture])
    found = fit(mine, "kfac")
    assert all(part.factored for part in found.network.parts)
    assert_close(found.precision.to_dense(), definitions(plain, architecture)["kfac"], TOLERANCES[architecture])


@NO_MODE
@pytest.mark.parametrize(("architecture", "task"), CASES)
def test_linearised_predictions_over_adapters(architecture: str, task: str) -> None:
    mine, plain = problem(architecture, task)
    data = {**mine.inputs, "labels": mine.targets}
    q = bs.laplace(mine.module, data, likelihood=mine.likelihood, weights="*lora*", prior_precision=30.0)
    matrix = definitions(plain, architecture)["kfac"]
    j = reference.jacobian(plain)
    covariance = j @ torch.linalg.solve(matrix + 30.0 * torch.eye(len(matrix), dtype=matrix.dtype), j.mT)
    p = q.predict(mine.inputs)
    if task == "next token":  # each position by itself
        covariance = covariance.unflatten(2, (LENGTH, -1)).unflatten(1, (LENGTH, -1)).diagonal(dim1=1, dim2=3)
        covariance = covariance.movedim(-1, 1)
    assert_close(p.latent_cov, covariance, TOLERANCES[architecture])
    assert p.probs.shape == reference.outputs(plain).shape


@pytest.mark.parametrize("curvature", ["ggn", "empirical_fisher"])
def test_tokens_without_a_label_tell_nothing(curvature: str) -> None:
    """Whatever is read there: the sums are those of the other positions."""
    mine, _ = problem("gpt2", "next token")
    known = mine.targets != -100
    other = torch.where(known, mine.targets, 1)
    without = fit(mine, "diagonal", curvature, generator=0)
    with_all = fit(Case(mine.module, mine.inputs, other, mine.likelihood, "*lora*"), "diagonal", curvature, generator=0)
    assert float(without.precision.diagonal().abs().sum()) < float(with_all.precision.diagonal().abs().sum())
    logits = mine.module.eval()(**mine.inputs).logits.detach()
    wanted = -nn.functional.cross_entropy(logits.flatten(0, 1), mine.targets.flatten(), reduction="sum")
    assert_close(without.log_likelihood, wanted)


def test_a_label_for_none_has_to_be_named() -> None:
    mine, _ = problem("gpt2", "next token")
    with pytest.raises(InputError, match=r"-100 in row 0, position 4. .*bs.Categorical\(ignored=-100\)"):
        fit(Case(mine.module, mine.inputs, mine.targets, bs.Categorical(), "*lora*"), "kfac")


@NO_MODE
def test_adapters_that_begin_at_zero_and_a_head_that_is_trained() -> None:
    """peft begins with B = 0, so that A's gradients are 0; `weights` leaves the head out, which peft trains too."""
    module = adapted("gpt2", "classes")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("lora" in name or "score" in name)
        if "lora_B" in name:
            nn.init.zeros_(parameter)
    options: dict[str, Any] = {"likelihood": "categorical", "prior_precision": 30.0}
    q = bs.laplace(module, batch("classes"), weights="*lora*", **options)
    network, variance = q.fit.curvature.network, q.precision.marginal_variance()
    assert all("lora" in name for name in network.weights.names)
    for part, index in zip(network.parts, network.indices, strict=True):
        told = float((1 / 30.0 - variance[index]).abs().max())
        assert told < 1e-12 if "lora_A" in part.name else told > 1e-6
