"""Callbacks for the trainers of Lightning and of Hugging Face: the posterior of the network, at the end of training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from bayescope import checks
from bayescope.errors import (
    BayescopeWarning,
    InputError,
    OptionError,
    UndefinedQuantityError,
    first_line,
    warn,
)
from bayescope.laplace.laplace import laplace
from bayescope.likelihoods import Likelihood, LikelihoodName, resolve
from bayescope.posterior import Posterior

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
else:  # a callback gets its base class when it is made, so that nobody waits for a package that they do not use
    Callback = TrainerCallback = object


class _PosteriorAtTheEnd:
    """What callbacks have in common: how the posterior is found at the end of a training, and the posterior itself."""

    _base: Callable[[], Any]  # imports the class that a trainer asks for

    def __init__(
        self,
        *,
        likelihood: LikelihoodName | Likelihood,
        fit: Callable[..., Posterior] = laplace,
        module: str | None = None,
        data: Any = None,
        **options: Any,
    ) -> None:
        # What can be known to be wrong is refused before the training.
        resolve(likelihood)
        _check_options(fit, {"likelihood": likelihood, **options})
        kind: Any = type(self)
        self.__class__ = _with_base(kind, self._base())
        self._likelihood, self._fit, self._module = likelihood, fit, module
        self._data, self._options = data, options
        self._found: Posterior | Exception | None = None

    @property
    def posterior(self) -> Posterior:
        """The posterior of the network as it was at the end of the last training.

        Raises:
            UndefinedQuantityError: if no training has ended yet.
            Exception: the one that kept the posterior from being found.
        """
        if self._found is None:
            raise UndefinedQuantityError("posterior: expected a training that has ended, got none. Train first.")
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def _settle(self, trained: nn.Module, data: Callable[[], Any]) -> None:
        """Finds the posterior. An error is kept and a warning given, so that what was trained is not lost."""
        parts = dict(trained.named_modules())
        try:
            if self._module is not None and self._module not in parts:
                raise OptionError.unknown("module", self._module, [name for name in parts if name])
            given = data() if self._data is None else self._data
            network = parts[self._module or ""]
            self._found = self._fit(network, given, likelihood=self._likelihood, **self._options)
        except Exception as error:  # noqa: BLE001 — whatever it is, the results of the training are not lost
            self._found = error
            warn(
                f"The training has ended, and its posterior could not be found: {first_line(error)} The callback's "
                ".posterior raises that error. Call bs.laplace on the trained network with other arguments.",
                BayescopeWarning,
            )


class LightningPosterior(_PosteriorAtTheEnd, Callback):
    """A callback for Lightning's ``Trainer``: at the end of ``fit`` it finds the posterior of the trained network.

    The network is read with the weights of the last step, and left as it was found. The rows are all those of the
    training data set in their order, put together by the loader's ``collate_fn`` in batches of its size, whatever the
    loader shuffles or drops. A loader with a sampler or batch sampler that is not torch's ``RandomSampler``,
    ``SequentialSampler`` or ``BatchSampler`` is read as it is, since such a sampler may select rows.

    Args:
        likelihood: a name or a likelihood.
        fit: the function that finds the posterior: `bs.laplace`, or another one that takes a module and its data.
        module: the name of the network among the parts of the ``LightningModule``, such as "network"; ``None`` where
            the ``LightningModule`` itself returns f.
        data: in place of the loader that the trainer was given, such as the training rows without a random
            augmentation, by which passes over them would differ.
        options: of the function, as keywords: ``weights``, ``structure``, ``prior_precision``, ``output`` and so on.

    Raises:
        MissingDependencyError: if Lightning is not installed.
        OptionError: if the likelihood is unknown, or the function does not take one of the options.

    Warns:
        BayescopeWarning: at the end of a training, if its posterior could not be found. The training ends as it would
            without the callback, and ``posterior`` raises the error.
    """

    @staticmethod
    def _base() -> Any:
        return checks.optional_package("lightning.pytorch", extra="trainers").Callback

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finds the posterior, when Lightning says that the training has ended."""
        loader = trainer.train_dataloader
        if isinstance(loader, DataLoader) and _takes_all_rows(loader):
            loader = _in_order(loader, loader.batch_size, loader.collate_fn)
        self._settle(pl_module, lambda: loader)


class TrainerPosterior(_PosteriorAtTheEnd, TrainerCallback):
    """A callback for the ``Trainer`` of Hugging Face: at the end of ``train`` it finds the posterior of the model.

    The model is read with the weights of the last step, and left as it was found. The rows are all those of the
    training data set in their order, put together by the trainer's own collator; batches are as large as those of the
    training. Labels are those that the trainer knows: ``label_names`` of its arguments, or else the labels that the
    model's ``forward`` takes. K of them, such as "start_positions" and "end_positions", become targets (N, K), which
    go with ``output=("start_logits", "end_logits")``.

    Args:
        likelihood: a name or a likelihood.
        fit: the function that finds the posterior: `bs.laplace`, or another one that takes a module and its data.
        module: the name of the network among the parts of the model; ``None`` for the model itself.
        data: in place of the trainer's own, in any form that the function takes.
        options: of the function, as keywords: ``weights``, ``structure``, ``prior_precision``, ``output`` and so on.

    Raises:
        MissingDependencyError: if transformers is not installed.
        OptionError: if the likelihood is unknown, or the function does not take one of the options.

    Warns:
        BayescopeWarning: at the end of a training, if its posterior could not be found. The training ends as it would
            without the callback, and ``posterior`` raises the error.
    """

    @staticmethod
    def _base() -> Any:
        return checks.optional_package("transformers", extra="trainers").TrainerCallback

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trained: Any
    ) -> None:
        """Finds the posterior, when the trainer says that the training has ended."""
        model, loader = trained["model"], trained["train_dataloader"]
        find_labels = checks.optional_package("transformers.utils", extra="trainers").find_labels
        names = args.label_names or find_labels(type(model))
        self._settle(model, lambda: _in_order(loader, args.train_batch_size, _pairs(loader.collate_fn, names)))


def _check_options(fit: Callable[..., Posterior], options: Mapping[str, Any]) -> None:
    """Checks that a function takes these keywords after a module and its data.

    Raises:
        OptionError: if it does not.
    """
    parameters = inspect.signature(fit).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in list(parameters)[2:]]
    if unknown := [name for name in options if name not in known]:
        raise OptionError.unknown("options", unknown[0], known)


@cache
def _with_base(kind: Any, base: Any) -> Any:
    """A class of callbacks that derives from its package's own class too; itself where it does so already."""
    members = {"__doc__": kind.__doc__, "__module__": kind.__module__}
    return kind if issubclass(kind, base) else type(kind.__name__, (kind, base), members)


def _in_order(loader: DataLoader[Any], batch_size: int | None, collate: Callable[[Any], Any]) -> DataLoader[Any]:
    """A loader of all rows of a loader's data set, in every pass each once and in the same order."""
    return DataLoader(loader.dataset, batch_size=batch_size, collate_fn=collate)


def _takes_all_rows(loader: DataLoader[Any]) -> bool:
    """Whether a loader's rows are those of its data set, but for their order and an incomplete last batch."""
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        return False
    return isinstance(loader.dataset, IterableDataset) or type(loader.sampler) in (RandomSampler, SequentialSampler)


def _pairs(collate: Callable[[Any], Any], names: Sequence[str]) -> Callable[[Any], tuple[dict[str, Tensor], Tensor]]:
    """A trainer's collator with its batches as pairs of inputs and targets.

    Raises:
        InputError: when a batch is made that has no labels.
    """

    def pair(rows: Any) -> tuple[dict[str, Tensor], Tensor]:
        batch = dict(collate(rows))
        targets = [batch.pop(name) for name in names if name in batch]
        if not targets:
            raise InputError(
                f"data: expected labels under one of {list(names)} in the trainer's batches, got {list(batch)}. Name "
                "them by label_names= of the TrainingArguments."
            )
        return batch, targets[0] if len(targets) == 1 else torch.stack(targets, 1)

    return pair
