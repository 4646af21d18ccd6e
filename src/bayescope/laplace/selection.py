"""Which model the data favour: `select`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import pandas as pd
import torch
from torch import Tensor, nn

from bayescope.curvature.options import Kind, StructureName
from bayescope.errors import BayescopeWarning, InputError, InputTypeError, warn
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.laplace import laplace
from bayescope.likelihoods import Likelihood
from bayescope.posterior import MixturePosterior, Posterior
from bayescope.process_state import outside_inference_mode


@final
@dataclass(frozen=True, eq=False)
class Candidate:
    """A model among others, with its evidence.

    Attributes:
        name: what the caller calls it.
        posterior: over its weights.
        log_evidence: log p(data), in nats.
        probability: of the model among all candidates, each as probable before the data.
    """

    name: str
    posterior: Posterior
    log_evidence: float
    probability: float

    @property
    def fit(self) -> LaplaceFit | None:
        """What the evidence was computed from, where it is known; the first mode's for a mixture."""
        first = self.posterior.components[0] if isinstance(self.posterior, MixturePosterior) else self.posterior
        return first.fit if isinstance(first.fit, LaplaceFit) else None

    @property
    def log_likelihood(self) -> float:
        """Σ log p(y∣f) at the mode, in nats; NaN where it is not known."""
        return float("nan") if self.fit is None else float(self.fit.curvature.log_likelihood)

    @property
    def parameters(self) -> int:
        """P, how many weights are random."""
        function = self.posterior.function
        return self.posterior.mean.shape[0] if function is None else function.dim

    @property
    def effective_parameters(self) -> float:
        """γ, how many of them the data determine; NaN where it is not known."""
        return float("nan") if self.fit is None else float(self.fit.effective_parameters())

    @property
    def newton_decrement(self) -> float:
        """How far the weights are from a mode, in posterior standard deviations; NaN where it is not known."""
        known = self.fit is not None and self.fit.gradient is not None
        return float(self.fit.newton_decrement()) if known and self.fit is not None else float("nan")


@final
@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """Models ranked by their evidence.

    Attributes:
        candidates: the one with the largest evidence first.
    """

    candidates: tuple[Candidate, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models, the best first."""
        return tuple(candidate.name for candidate in self.candidates)

    @property
    def best(self) -> Posterior:
        """The posterior of the model with the largest evidence."""
        return self.candidates[0].posterior

    @property
    def log_evidences(self) -> dict[str, float]:
        """log p(data) by name, in nats, the best first."""
        return {candidate.name: candidate.log_evidence for candidate in self.candidates}

    @property
    def posteriors(self) -> dict[str, Posterior]:
        """The posteriors by name, the best first."""
        return {candidate.name: candidate.posterior for candidate in self.candidates}

    @property
    def table(self) -> pd.DataFrame:
        """One row a model, the best first.

        Columns: ``log_evidence``, and how far it is ``behind`` the best, in nats; ``probability`` of the model among
        these; ``log_likelihood`` at the mode; the number of ``parameters``, and how many of them the data determine,
        ``effective_parameters``; ``newton_decrement``.
        """
        columns = ("log_evidence", "probability", "log_likelihood", "parameters", "effective_parameters")
        rows = {c.name: {name: getattr(c, name) for name in (*columns, "newton_decrement")} for c in self.candidates}
        table = pd.DataFrame.from_dict(rows, orient="index")
        table.insert(1, "behind", table["log_evidence"].max() - table["log_evidence"])
        return table

    def summary(self) -> str:
        """The table, written for readers."""
        head = ("model", "log evidence", "behind", "probability", "log likelihood", "determined", "Newton decrement")
        rows = [head, *(_cells(str(name), row) for name, row in self.table.iterrows())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        return "\n".join([f"Selection among {len(self.candidates)} models by their evidence", *lines])

    def __repr__(self) -> str:
        return self.summary()

    def __getitem__(self, name: str) -> Posterior:
        return self.posteriors[name]

    def __len__(self) -> int:
        return len(self.candidates)


@outside_inference_mode
def select(
    models: Mapping[str, Any] | Sequence[Any],
    data: Any = None,
    *,
    likelihood: str | Likelihood | None = None,
    weights: Any = "all",
    curvature: Kind = "ggn",
    structure: StructureName = "kfac",
    prior_precision: Any = "evidence",
    batch_size: int = 1024,
    generator: torch.Generator | int | None = None,
    progress: bool = False,
) -> Selection:
    """Ranks models by the evidence p(data∣model), which weighs how well a model fits against how finely it is tuned.

    For trained modules that is Laplace's approximation at their weights, after `tune_prior` by default (MacKay 1992,
    "Bayesian interpolation"; Immer et al. 2021a). Only models of the same data compare: evidences of different data,
    with different weights held fixed, or by different approximations cannot be ranked, and a warning says so.

    Args:
        models: by name, or in a sequence: trained modules, posteriors that have an evidence, or both.
        data: what modules were trained on, in any form that `laplace` takes; needed for modules alone.
        likelihood: of the modules; see `laplace`.
        weights: of the modules, which are random.
        curvature: of the modules.
        structure: of the modules' curvature.
        prior_precision: of the modules; "evidence" tunes one a layer, and the noise.
        batch_size: rows at once, where the data are not in batches already.
        generator: draws what the curvature draws.
        progress: whether bars are drawn.

    Returns:
        A `Selection`: names, evidences and posteriors from the best to the worst, and a table.

    Raises:
        InputTypeError: if a model is neither a module nor a posterior.
        InputError: if there are none, or modules come without data or likelihood.
        UndefinedQuantityError: if a posterior has no evidence.

    Warns:
        BayescopeWarning: if the evidences are of different data (preprocessing counts), likelihoods, temperatures,
            choices of random weights, kinds of prior or approximations.
        ConvergenceWarning: if a module's weights are far from a mode.
    """
    named = _named(models)
    modules = [name for name, model in named.items() if not isinstance(model, Posterior)]
    _check_arguments(modules, data, likelihood)
    if not modules:
        _refuse_unused(
            weights=isinstance(weights, str) and weights == "all", curvature=curvature == "ggn",
            structure=structure == "kfac", prior_precision=isinstance(prior_precision, str),
            batch_size=batch_size == 1024,
        )  # fmt: skip
    posteriors = {}
    for name, model in named.items():
        if isinstance(model, Posterior):
            posteriors[name] = model
            continue
        assert likelihood is not None
        posteriors[name] = laplace(
            model, data, likelihood=likelihood, weights=weights, curvature=curvature, structure=structure,
            prior_precision=prior_precision, batch_size=batch_size, generator=generator, progress=progress,
        )  # fmt: skip
    evidences = torch.stack([q.log_evidence().detach().cpu().to(torch.float64) for q in posteriors.values()])
    probabilities = torch.softmax(evidences, 0)
    candidates = [
        Candidate(name, q, float(evidence), float(probability))
        for (name, q), evidence, probability in zip(posteriors.items(), evidences, probabilities, strict=True)
    ]
    _warn_of_differences(candidates)
    return Selection(tuple(sorted(candidates, key=lambda candidate: -candidate.log_evidence)))


def _cells(name: str, row: pd.Series) -> tuple[str, ...]:
    determined = f"{row['effective_parameters']:.1f} of {int(row['parameters']):,}"
    numbers = (f"{row['log_evidence']:.2f}", f"{row['behind']:.2f}", f"{row['probability']:.3g}")
    return (name, *numbers, f"{row['log_likelihood']:.2f}", determined, f"{row['newton_decrement']:.2g}")


def _named(models: Any) -> dict[str, Any]:
    if isinstance(models, Mapping):
        named = {str(name): model for name, model in models.items()}
    elif isinstance(models, Sequence) and not isinstance(models, str | nn.Module):
        named = {f"model {place}": model for place, model in enumerate(models)}
    else:
        raise InputTypeError(f"models: expected a dict by name or a list of models, got {type(models).__name__}.")
    if not named:
        raise InputError("models: expected at least one model, got none.")
    for name, model in named.items():
        if not isinstance(model, Posterior | nn.Module):
            raise InputTypeError(
                f"models: expected trained modules or posteriors, got {type(model).__name__} under {name!r}."
            )
    return named


def _check_arguments(modules: Sequence[str], data: Any, likelihood: Any) -> None:
    for name, value in (("data", data), ("likelihood", likelihood)):
        if modules and value is None:
            raise InputError(f"{name}: expected what the modules were trained with, for {modules}, got None.")
        if not modules and value is not None:
            raise InputError(f"{name}: expected with modules alone: posteriors have their evidence. Leave it out.")


def _refuse_unused(**is_default: bool) -> None:
    """Refuses options of modules where there are none to be fitted."""
    for name, default in is_default.items():
        if not default:
            raise InputError(f"{name}: expected with modules alone: posteriors are what they are. Leave it out.")


def _warn_of_differences(candidates: Sequence[Candidate]) -> None:
    """Warns where evidences are no measure of one another."""
    fits = {candidate.name: candidate.fit for candidate in candidates}
    known = {name: fit for name, fit in fits.items() if fit is not None}
    traits: dict[str, dict[str, Any]] = {
        "numbers of rows": {name: fit.curvature.rows for name, fit in known.items()},
        "data, or data preprocessed in other ways": {n: f.fingerprint for n, f in known.items() if f.fingerprint},
        "likelihoods": {name: fit.likelihood.name for name, fit in known.items()},
        "choices of random weights": {name: _random(fit) for name, fit in known.items()},
        "priors": {name: _kind_of_prior(fit) for name, fit in known.items()},
        "temperatures": {name: f"{fit.temperature:g}" for name, fit in known.items()},
        "approximations": {name: f"{f.curvature.kind} {f.curvature.structure}" for name, f in known.items()},
    }
    found = [what for what, by_name in traits.items() if len(set(by_name.values())) > 1]
    if "numbers of rows" in found and "data, or data preprocessed in other ways" in found:
        found.remove("data, or data preprocessed in other ways")
    if found:
        details = "; ".join(f"{what} ({_told(traits[what])})" for what in found)
        warn(
            f"select: expected evidences of one set of data, one likelihood and one approximation, got different "
            f"{details}. Their ranking says little: fit all models alike.",
            BayescopeWarning,
        )


def _kind_of_prior(fit: LaplaceFit) -> str:
    """A posterior of earlier data that has become the prior makes another evidence: that of the new data given them."""
    return "precisions" if isinstance(fit.prior.precision, Tensor) else "a posterior of earlier data"


def _told(by_name: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in by_name.items())


def _random(fit: LaplaceFit) -> str:
    """Which weights are random: all, or which of them, others being conditioned on."""
    weights, module = fit.function.weights, fit.function.module
    total = sum(parameter.numel() for parameter in module.parameters())
    if weights.dim == total:
        return "all"
    return f"{weights.dim:,} of {total:,} in {', '.join(weights.names)}"
