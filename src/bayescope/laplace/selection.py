"""Which model the data favour: `select`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from bayescope import notebook
from bayescope.curvature import CurvatureKeywords, CurvatureOptions
from bayescope.errors import BayescopeWarning, InputError, InputTypeError, warn
from bayescope.keywords import takes
from bayescope.laplace.fit import LaplaceFit
from bayescope.laplace.laplace import laplace
from bayescope.layers.output_choice import OutputChoice
from bayescope.likelihoods import Likelihood, LikelihoodName
from bayescope.network.batches import Data
from bayescope.network.priors import PriorPrecision
from bayescope.network.weights import Choice
from bayescope.posterior import MixturePosterior, Posterior
from bayescope.process_state import outside_inference_mode

# The columns of a summary: the heading, the column of the table, and how its numbers are written.
_COLUMNS = (
    ("log evidence", "log_evidence", "{:.2f}"),
    ("behind", "behind", "{:.2f}"),
    ("probability", "probability", "{:.3g}"),
    ("log likelihood", "log_likelihood", "{:.2f}"),
    ("parameters", "parameters", "{:,}"),
    ("determined", "effective_parameters", "{:.1f}"),
    ("Newton decrement", "newton_decrement", "{:.2g}"),
)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """Models ranked by their evidence.

    Attributes:
        posteriors: by name, the one with the largest evidence first.
    """

    posteriors: Mapping[str, Posterior]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models, the best first."""
        return tuple(self.posteriors)

    @property
    def best(self) -> Posterior:
        """The posterior of the model with the largest evidence."""
        return self.posteriors[self.names[0]]

    @property
    def log_evidences(self) -> dict[str, float]:
        """log p(data) by name, in nats, the best first."""
        return {name: float(q.log_evidence()) for name, q in self.posteriors.items()}

    @property
    def table(self) -> pd.DataFrame:
        """One row a model, the best first.

        Columns: ``log_evidence``, and how far it is ``behind`` the best, in nats; ``probability`` of the model among
        these, each as probable before the data; ``log_likelihood`` at the mode; the number of ``parameters``, and how
        many of them the data determine, ``effective_parameters``; ``newton_decrement``. What is not known is NaN.
        """
        table = pd.DataFrame.from_dict({name: _numbers(q) for name, q in self.posteriors.items()}, orient="index")
        table["behind"] = table["log_evidence"].max() - table["log_evidence"]
        odds = np.exp(-table["behind"])
        table["probability"] = odds / odds.sum()
        columns = ("log_evidence", "behind", "probability", "log_likelihood", "parameters", "effective_parameters")
        return table.reindex(columns=[*columns, "newton_decrement"])

    def summary(self) -> str:
        """The table, written for readers."""
        return f"{self._title}\n{self._written().to_string()}"

    @property
    def _title(self) -> str:
        return f"Selection among {len(self)} models by their evidence"

    def _written(self) -> pd.DataFrame:
        """The table with headings, and its numbers as text."""
        table = self.table
        columns = {heading: table[name].map(form.format) for heading, name, form in _COLUMNS}
        return pd.DataFrame(columns).rename_axis(columns="model")

    def __repr__(self) -> str:
        return self.summary()

    @notebook.shows
    def _repr_html_(self) -> str:
        return notebook.card(self._title, notebook.table(self._written().rename_axis(index="model")))

    def __getitem__(self, name: str) -> Posterior:
        return self.posteriors[name]

    def __len__(self) -> int:
        return len(self.posteriors)


@outside_inference_mode
@takes(CurvatureKeywords, CurvatureOptions, OutputChoice)
def select(
    models: Mapping[str, Any] | Sequence[Any],
    data: Data | None = None,
    *,
    likelihood: LikelihoodName | Likelihood | None = None,
    weights: Choice = "all",
    prior_precision: PriorPrecision | Literal["auto", "evidence"] = "evidence",
    generator: torch.Generator | int | None = None,
    progress: bool = False,
    **options: Unpack[CurvatureKeywords],
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
        prior_precision: of the modules; "evidence" tunes one a layer, and the noise.
        generator: draws what the curvature draws.
        progress: whether bars are drawn.
        options: as `CurvatureOptions` describes them: ``curvature``, ``structure``, ``blocks``, ``rank``, ``cutoff``,
            ``sharing``, ``output_factor``, ``batch_size`` and ``memory``. ``structure="samples"`` makes
            draws by sample-then-optimise, which builds no matrix at all. ``output`` and ``classes_dim`` say which part
            of what the modules return is f: see `OutputChoice`. All of them are for the modules.

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
    given = (("weights", weights, "all"), ("prior_precision", prior_precision, "evidence"))
    defaults = vars(CurvatureOptions()) | vars(OutputChoice())
    changed = [name for name, value in options.items() if value != defaults[name]]
    changed += [name for name, value, word in given if not isinstance(value, str) or value != word]
    if changed and not modules:
        raise InputError(f"{changed[0]}: expected with modules alone: posteriors are what they are. Leave it out.")
    posteriors = {}
    for name, model in named.items():
        if isinstance(model, Posterior):
            posteriors[name] = model
            continue
        assert data is not None
        assert likelihood is not None
        posteriors[name] = laplace(
            model, data, likelihood=likelihood, weights=weights, prior_precision=prior_precision, generator=generator,
            progress=progress, **options,
        )  # fmt: skip
    _warn_of_differences(posteriors)
    return Selection(dict(sorted(posteriors.items(), key=lambda item: -float(item[1].log_evidence()))))


def _fit_of(q: Posterior) -> LaplaceFit | None:
    """What an evidence was computed from, where it is known; the first mode's for a mixture."""
    first = q.components[0] if isinstance(q, MixturePosterior) else q
    return first.fit if isinstance(first.fit, LaplaceFit) else None


def _numbers(q: Posterior) -> dict[str, float]:
    """What is known of a model, by the names of the table's columns."""
    fit = _fit_of(q)
    numbers = {"log_evidence": float(q.log_evidence())}
    numbers["parameters"] = q.mean.shape[0] if q.function is None else q.function.dim
    if fit is not None:
        numbers["log_likelihood"] = float(fit.curvature.log_likelihood)
        numbers["effective_parameters"] = float(fit.effective_parameters())
        if fit.gradient is not None:
            numbers["newton_decrement"] = float(fit.newton_decrement())
    return numbers


def _named(models: object) -> dict[str, Any]:
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


def _check_arguments(modules: Sequence[str], data: object, likelihood: object) -> None:
    for name, value in (("data", data), ("likelihood", likelihood)):
        if modules and value is None:
            raise InputError(f"{name}: expected what the modules were trained with, for {modules}, got None.")
        if not modules and value is not None:
            raise InputError(f"{name}: expected with modules alone: posteriors have their evidence. Leave it out.")


def _warn_of_differences(posteriors: Mapping[str, Posterior]) -> None:
    """Warns where evidences are no measure of one another."""
    known = {name: fit for name, q in posteriors.items() if (fit := _fit_of(q)) is not None}
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
        listed = {what: ", ".join(f"{name}: {value}" for name, value in traits[what].items()) for what in found}
        details = "; ".join(f"{what} ({values})" for what, values in listed.items())
        warn(
            f"select: expected evidences of one set of data, one likelihood and one approximation, got different "
            f"{details}. Their ranking says little: fit all models alike.",
            BayescopeWarning,
        )


def _kind_of_prior(fit: LaplaceFit) -> str:
    """A posterior of earlier data that has become the prior makes another evidence: that of the new data given them."""
    return "precisions" if isinstance(fit.prior.precision, Tensor) else "a posterior of earlier data"


def _random(fit: LaplaceFit) -> str:
    """Which weights are random: all, or which of them, others being conditioned on."""
    weights, module = fit.function.weights, fit.function.module
    total = sum(parameter.numel() for parameter in module.parameters())
    if weights.dim == total:
        return "all"
    return f"{weights.dim:,} of {total:,} in {', '.join(weights.names)}"
