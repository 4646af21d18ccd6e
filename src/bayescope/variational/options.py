"""How a variational posterior is made: what was asked for, apart from model, data, prior and likelihood."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, final

from bayescope import checks
from bayescope.errors import InputError, OptionError, UnsupportedError
from bayescope.keywords import picked
from bayescope.reparameterization import ESTIMATORS
from bayescope.storage import stored
from bayescope.training.options import MakeOptimizer, ScheduleKeywords, TrainingOptions
from bayescope.training.training import EPOCHS

MEAN_FIELD, LOW_RANK, FULL = "mean_field", "low_rank", "full"
STICKING_THE_LANDING, REPARAMETERIZATION = "sticking_the_landing", "reparameterization"
# By family, the estimators that it takes; the first one is its default.
ESTIMATORS_OF = {
    MEAN_FIELD: ESTIMATORS,
    LOW_RANK: (STICKING_THE_LANDING, REPARAMETERIZATION),
    FULL: (STICKING_THE_LANDING, REPARAMETERIZATION),
}
EVIDENCE = "evidence"
LAPLACE = "laplace"
IVON = "ivon"
_NAMED_OPTIMIZERS = ("adam", "sgd", IVON)
_DEFAULT_RANK = 10


class VariationalKeywords(ScheduleKeywords, total=False):
    """The keywords of `TrainingOptions` as `variational` takes them."""

    optimizer: Literal["adam", "sgd", "ivon"] | MakeOptimizer
    patience: int | None
    warmup: int


@stored("variational_options")
@final
@dataclass(frozen=True)
class VariationalOptions:
    """The options of a variational fit; see `variational` for what each of them means.

    Attributes:
        training: how q is trained.
        natural: whether steps are natural gradients, those of "ivon".
        warmup: epochs.
        family: "mean_field", "low_rank" or "full".
        rank: of the family "low_rank", else ``None``.
        estimator: of the gradient.
        samples: S.
        kl_weight: w.
        initial_sd: a number, a tensor, "laplace" or ``None``.
        groups: of prior precisions that are learnt.
    """

    training: TrainingOptions
    natural: bool
    warmup: int
    family: str
    rank: int | None
    estimator: str
    samples: int
    kl_weight: float
    initial_sd: Any
    groups: str

    @classmethod
    def of(
        cls, options: VariationalKeywords, *, family: Any, rank: Any, estimator: Any, samples: Any, kl_weight: Any,
        initial_sd: Any, groups: Any,
    ) -> VariationalOptions:  # fmt: skip
        """The options, if each of them can be used and they go together.

        Raises:
            OptionError: if a name is unknown.
            InputError: if a number cannot be used.
            UnsupportedError: if two options do not go together; the message lists what does.
        """
        checks.choice("family", family, ESTIMATORS_OF)
        optimizer, warmup = options["optimizer"], checks.count("warmup", options["warmup"], least=0)
        if not callable(optimizer):
            checks.choice("optimizer", optimizer, _NAMED_OPTIMIZERS)
        natural = optimizer == IVON
        if rank is not None and family != LOW_RANK:
            raise UnsupportedError(f"rank: expected with the family 'low_rank', got {family!r}. Leave it out.")
        if family == LOW_RANK:
            rank = _DEFAULT_RANK if rank is None else checks.count("rank", rank)
        training = picked(TrainingOptions, options | {"optimizer": "adam"} if natural else options)
        if training.epochs is None and warmup:  # a warm-up is a part of the epochs, so that they are counted
            training = replace(training, epochs=EPOCHS)
        if training.epochs is not None and warmup >= max(1, training.epochs):
            raise UnsupportedError(
                f"warmup: expected fewer epochs than there are, {training.epochs}, got {warmup}: q would be "
                "trained without the whole KL term. Take a smaller warmup or more epochs."
            )
        if training.epochs == 0 and (training.validation is not None or training.checkpoint is not None):
            raise UnsupportedError(
                "epochs: expected at least 1 to go with validation= or checkpoint=, got 0. Leave them out."
            )
        return cls(
            training, natural, warmup, family, rank, _estimator(estimator, family, natural=natural),
            checks.count("samples", samples), checks.positive_number("kl_weight", kl_weight),
            _first_sd(initial_sd), groups,
        )  # fmt: skip


def _first_sd(initial_sd: Any) -> Any:
    """A positive number, a positive array, "laplace" or ``None``.

    Raises:
        OptionError: for another name.
        InputError: if a number is not positive.
    """
    if initial_sd is None:
        return None
    if isinstance(initial_sd, str):
        if initial_sd != LAPLACE:
            raise OptionError.unknown("initial_sd", initial_sd, [LAPLACE])
        return initial_sd
    return checks.positive("initial_sd", initial_sd)


def check_groups(prior_precision: object, groups: str) -> None:
    """Checks that groups are named where one prior precision is learnt for each of them, and nowhere else.

    Raises:
        OptionError: if the prior precision is another word than "evidence".
        UnsupportedError: if groups are named for a prior that is given.
    """
    if isinstance(prior_precision, str):
        checks.choice("prior_precision", prior_precision, [EVIDENCE])
    elif groups != "layer":
        raise UnsupportedError(
            f"share_prior: expected with prior_precision='evidence', which learns one precision a group, got "
            f"{groups!r} and a prior that is given. Leave it out."
        )


def _estimator(estimator: Any, family: str, *, natural: bool) -> str:
    """The estimator itself, or the default of a family.

    Raises:
        OptionError: if the name is unknown.
        UnsupportedError: if the family or the optimiser does not take it.
    """
    if estimator is not None:
        checks.choice("estimator", estimator, ESTIMATORS)
    takes: tuple[str, ...] = ESTIMATORS_OF[family]
    if natural:
        if family != MEAN_FIELD:
            raise UnsupportedError(f"optimizer: 'ivon' expects the family 'mean_field', got {family!r}. Take 'adam'.")
        takes = (REPARAMETERIZATION,)
    if estimator is None:
        return takes[0]
    if estimator not in takes:
        kind = f"the optimizer {IVON!r}" if takes == (REPARAMETERIZATION,) else f"the family {family!r}"
        raise UnsupportedError(
            f"estimator: expected one of {', '.join(map(repr, takes))} for {kind}, got {estimator!r}. Leave it out."
        )
    return str(estimator)


def check_rank(rank: int, dim: int) -> int:
    """A rank that P weights can have.

    Raises:
        InputError: if it is larger than P.
    """
    if rank > dim:
        raise InputError(f"rank: expected at most {dim}, the number of random weights, got {rank}.")
    return rank
