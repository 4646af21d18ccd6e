"""What all estimators share: a fit that is whole or not at all, and what they tell of their posterior."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bayescope import checks
from bayescope.curvature.memory import refuse_ran_out
from bayescope.errors import InputTypeError, UndefinedQuantityError
from bayescope.estimators.labels import class_codes, numbers
from bayescope.posterior import DrawsPosterior, GaussianPosterior, PointPosterior, Posterior
from bayescope.posterior.arviz_groups import NamedDraws, inference_data
from bayescope.predictive import Predictive
from bayescope.storage import save

# Below this a probability of three classes and more may be too small for a float, or rare among very many classes.
TAIL = 1e-8
# Numbers that predicting one block of rows may hold at a time.
BLOCK_NUMBERS = 2**22

P = TypeVar("P", bound=GaussianPosterior | DrawsPosterior | PointPosterior)
_Arguments = ParamSpec("_Arguments")
_Estimator = TypeVar("_Estimator", bound=BaseEstimator)


class MissingAttributeError(UndefinedQuantityError, AttributeError):
    """A learned attribute that this posterior does not define: for ``hasattr`` it is not there."""


class PosteriorHolder(BaseEstimator):  # type: ignore[misc]
    """What every fitted estimator tells of its posterior, and how it is saved."""

    posterior_: Posterior
    random_state: Any

    def save(self, path: str | Path, *, metadata: Mapping[str, Any] | None = None) -> Path:
        """Writes the fitted estimator into one file, from which `bayescope.load` has it again: answers to the last bit.

        The file has the parameters, what was learnt of the inputs, and the posterior; no row of the table, and no code.
        What an additive model learnt of the inputs are the values that each feature, and each pair with a term, took.

        Args:
            path: the file, by custom with the suffix ".bayes"; one of that name is replaced in a single step.
            metadata: what is to stand beside it: text, numbers, truth values, ``None``, lists and mappings of these.

        Returns:
            The path.

        Raises:
            NotFittedError: if it has not been fitted.
            UnsupportedError: if a part is the caller's own code, such as a transformer of features.
            InputError: if the file cannot be written.
        """
        check_is_fitted(self)
        return save(self, path, summary=self.summary(), metadata=metadata)

    def summary(self) -> str:
        """How the posterior was made, with the prior and its units."""
        check_is_fitted(self)
        return self.posterior_.summary()

    def to_arviz(
        self, *, data: tuple[Any, Any] | None = None, draws: int = 1000, generator: torch.Generator | int | None = None
    ) -> Any:
        """Draws as ArviZ's ``InferenceData``, from its version 1 on a ``DataTree``.

        The group ``posterior`` has, for a linear model, ``weights`` along "feature" and ``intercept``, of several
        classes each along "class" first; for an additive one ``intercept`` and the effect of each feature, by its name,
        along the values of `effects`; for a network all ``weights`` in one row, which have no meaning one by one.
        ``sample_stats`` has what a sampler reports.

        Args:
            data: (X, y), a table and its targets; with it each row's log likelihood stands in ``log_likelihood``, y
                drawn at each draw of the weights in ``posterior_predictive``, and y itself in ``observed_data``, all
                along "row". Labels are the codes 0…K−1 of ``classes_``. f is the one of `predict_distribution`: where
                that linearises a model, it is linear in the weights.
            draws: how many, for posteriors that are not draws themselves.
            generator: a ``torch.Generator`` or an int; ``random_state`` by default.

        Raises:
            MissingDependencyError: if ArviZ is not installed.
            InputError: if the data cannot be used.
            UndefinedQuantityError: if the posterior draws functions and no weights.
        """
        check_is_fitted(self)
        source = generator_from(self.random_state) if generator is None else generator
        if data is not None:
            data = self._model_rows(data[0]), self._targets(data[1], len(data[0]))
        groups = self.posterior_.groups(data, draws, source)
        named = self._named_draws(torch.from_numpy(groups["posterior"]["theta"]))
        dims = {name: list(along) for name, (along, _) in named.variables.items()}
        coords = dict(named.coords)
        if "observed_data" in groups:
            dims["y"], coords["row"] = ["row"], list(range(len(groups["observed_data"]["y"])))
        variables = {name: values for name, (_, values) in named.variables.items()}
        return inference_data(groups | {"posterior": variables}, dims=dims, coords=coords)

    def _model_rows(self, X: Any) -> Any:
        """A table as the posterior takes it."""
        return X

    def _targets(self, y: Any, rows: int) -> np.ndarray:
        """The targets of so many rows as the likelihood takes them."""
        classes = None if getattr(self, "_multilabel", False) else getattr(self, "classes_", None)
        return numbers(y, rows) if classes is None else class_codes(y, rows, classes)

    def _named_draws(self, theta: Tensor) -> NamedDraws:
        """Drawn weights (chains, draws, P) by the names that mean something."""
        return NamedDraws({"weights": (["weight"], theta.numpy())}, {})

    @property
    def log_evidence_(self) -> float:
        """log p(y∣X), exact or as the approximation defines it; by blocks, a lower bound on the full curvature's."""
        check_is_fitted(self)
        return defined(self.posterior_.log_evidence)

    @property
    def elbo_(self) -> float:
        """A lower bound on log p(y∣X)."""
        check_is_fitted(self)
        return defined(lambda: self.posterior_.elbo)


def whole_or_not_at_all(
    fit: Callable[Concatenate[_Estimator, _Arguments], _Estimator],
) -> Callable[Concatenate[_Estimator, _Arguments], _Estimator]:
    """Leaves the estimator as it was where its fit fails or is interrupted, and says so where memory has run out."""

    @wraps(fit)
    def safe(self: _Estimator, /, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Estimator:
        before = dict(vars(self))
        try:
            return fit(self, *arguments, **options)
        except BaseException as error:
            vars(self).clear()
            vars(self).update(before)
            refuse_ran_out(error)
            raise

    return safe


def generator_from(random_state: Any) -> torch.Generator:
    """A generator for scikit-learn's ``random_state``: an int, a RandomState, which is advanced, or ``None``.

    Raises:
        InputTypeError: if it is something else.
    """
    if random_state is None:
        return checks.generator(None)
    if isinstance(random_state, int | np.integer):
        return checks.generator(int(random_state))
    try:
        source = check_random_state(random_state)
    except ValueError:
        raise InputTypeError(
            f"random_state: expected an int, a numpy.random.RandomState or None, got {random_state!r}."
        ) from None
    return checks.generator(int(source.randint(2**31 - 1)))


def as_tensor(table: np.ndarray) -> Tensor:
    """The table as a tensor on the same memory; one that is read-only or has negative strides is copied."""
    return torch.from_numpy(table if table.flags.writeable and min(table.strides) >= 0 else table.copy())


def noted(posterior: P, notes: dict[str, str]) -> P:
    """The posterior with more lines in its summary."""
    record = posterior.record
    return replace(posterior, record=replace(record, notes={**record.notes, **notes}))


def probabilities(predictive: Predictive) -> np.ndarray:
    """p(y = k∣x, data), shape (N, K): those of `Predictive.probs`, without the variances that it integrates too."""
    return predictive.latent.expected(predictive.likelihood).detach().cpu().numpy()


def log_probabilities(predictive: Predictive, classes: int) -> np.ndarray:
    """log p(y = k∣x, data), shape (N, K), without underflow: those of `Predictive.log_prob`."""
    if classes == 2:
        return np.stack([predictive.log_prob(np.full(len(predictive), k)) for k in range(2)], axis=1)
    probs = probabilities(predictive)
    logs = np.log(np.maximum(probs, TAIL))
    for k in np.flatnonzero((probs < TAIL).any(0)):
        tails = predictive.log_prob(np.full(len(predictive), k))
        logs[:, k] = np.where(probs[:, k] < TAIL, tails, logs[:, k])
    return logs


def defined(quantity: Callable[[], Tensor]) -> float:
    """A quantity of the posterior as a number.

    Raises:
        MissingAttributeError: if the approximation does not define it.
    """
    try:
        return float(quantity())
    except UndefinedQuantityError as error:
        raise MissingAttributeError(str(error)) from None
