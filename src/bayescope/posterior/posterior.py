"""What a posterior is: q(θ) of a model or a density, with everything that its forms share written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bayescope import checks, notebook
from bayescope.errors import InputError, UndefinedQuantityError, UnsupportedError
from bayescope.likelihoods import IntegralName, Likelihood, described
from bayescope.logs import logged
from bayescope.memory import draw_count
from bayescope.models import Model
from bayescope.network.inputs import has_tensors, requires_grad
from bayescope.network.model import network_of
from bayescope.network.prediction_data import input_batches
from bayescope.posterior.answer import Answer, Options, check_top
from bayescope.posterior.arviz_groups import Groups, inference_data, row_groups
from bayescope.posterior.joint import JointLatent
from bayescope.posterior.missing import InputRows, TableReader, integrated, require_no_reader
from bayescope.posterior.predictive_module import export_onnx, predictive_module
from bayescope.posterior.weights import WeightDistribution
from bayescope.predictive import Predictive
from bayescope.priors import Prior
from bayescope.process_state import outside_inference_mode
from bayescope.storage import save
from bayescope.top_classes import TopClasses

P = TypeVar("P", bound="Posterior")
# Inputs whose predictions are tensors; of other lists and mappings no type checker knows, and all else gives arrays.
Tensors: TypeAlias = Tensor | Mapping[str, Tensor] | tuple[Tensor, ...] | list[Tensor] | DataLoader[Any]


class PredictKeywords(TypedDict, total=False):
    """The options of `Posterior.predict`, for type checkers."""

    method: Literal["linearized", "sampled"] | None
    integral: IntegralName | None
    samples: int | None
    generator: torch.Generator | int | None
    differentiable: bool
    top: int | None


class Evidence(ABC):
    """log p(data) of an approximation, as a function of what the evidence is there to judge."""

    @abstractmethod
    def log_evidence(self, prior_precision: Any = None, noise_variance: Any = None) -> Tensor:
        """A float64 scalar, differentiable in what is given as a tensor; ``None`` for what the fit itself had."""


class Posterior(WeightDistribution):
    """q(θ) over P weights: a Gaussian, a mixture, draws, a point, or the random passes of a network.

    The forms are final; this class holds what all of them share. A query never writes.

    Attributes:
        location: a point in the middle, shape (P,), where there is one.
        record: how the posterior was made.
        function: f(x, θ), for predictions; ``None`` for a bare log density.
        likelihood: p(y∣f); ``None`` for a bare log density.
        infer: the inference that made it, as a function of the prior and the data, where it is one.
        fit: the evidence as a function of the prior precision and the noise, where it is known as one.
        lost: which of the two a posterior that was loaded had before it was saved, and its file could not hold.
        statistics: what a sampler reports of each draw, by ArviZ's names; empty for posteriors that are no draws.
        reader: makes the model's inputs of tables like the one that an estimator was fitted to; ``None`` where the
            model takes its inputs as they are.
    """

    likelihood: Likelihood | None
    infer: Callable[..., Posterior] | None = None
    fit: Evidence | None = None
    lost: tuple[str, ...] = ()
    statistics: Mapping[str, Tensor] = MappingProxyType({})
    reader: TableReader | None = None

    @abstractmethod
    def _latent(self, x: object, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        """The distribution of f at inputs as they came, by the model as the options read it."""

    def _functions(self, x: object, function: Model, n: int, generator: torch.Generator) -> Tensor:
        """n functions at inputs as they came, shape (n, N, *positions, C)."""
        return function.forward(function.inputs(x), self.sample(n, generator=generator))

    def _joint(self, x: object, function: Model, blocks: int) -> JointLatent:
        """The moments of f at inputs as they came, joint over each of so many blocks of them.

        Raises:
            UndefinedQuantityError: if there are no weights that they could be computed from.
        """
        why = "draws functions, whose moments it does not know. Ask for sample_functions."
        raise self.record.undefined("joint_latent", why)

    def _with_graph(self: P) -> P:
        """The posterior whose functions keep the graph of x."""
        function = None if self.function is None else self.function.differentiable
        return cast(P, replace(cast(Any, self), function=function))

    @property
    def _dtype(self) -> torch.dtype:
        """The floating-point type of tensors that are answered: half precision has too few digits for variances."""
        found = torch.float64
        for model in self._models():
            if (network := network_of(model)) is not None:
                found = torch.promote_types(network.dtype, torch.float32)
        return found

    def _as_prior(self) -> Prior:
        """This posterior as the prior of the next inference.

        Raises:
            UndefinedQuantityError: if it is no Gaussian.
        """
        raise self.record.undefined("condition", "cannot be a prior: a single Gaussian can.")

    @property
    def model(self) -> Any:
        """The model: for a network a module with the weights of the mode, a copy that is the user's to change."""
        return None if self.function is None else self.function.source

    @overload
    def predict(self, x: Tensors, **options: Unpack[PredictKeywords]) -> Predictive[Tensor]: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, x: Sequence[Any] | Mapping[Any, Any], **options: Unpack[PredictKeywords]) -> Predictive: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, x: object, **options: Unpack[PredictKeywords]) -> Predictive[np.ndarray]: ...
    @outside_inference_mode
    def predict(
        self,
        x: object,
        *,
        method: Literal["linearized", "sampled"] | None = None,
        integral: IntegralName | None = None,
        samples: int | None = None,
        generator: torch.Generator | int | None = None,
        differentiable: bool = False,
        top: int | None = None,
    ) -> Predictive:
        """The predictive distribution at the inputs x.

        Args:
            x: inputs as the model takes them, N rows; for the posterior of an estimator a table as the estimator takes
                it. What the training rows say of values that a row lacks is then part of the epistemic variance.
                A DataLoader, a Dataset, or a list of batches is read a batch at a time, without its targets: the answer
                is that for all rows at once, and of them only f is kept in memory.
            method: "linearized" (f is Gaussian: exact for a linear model) or "sampled" (f at drawn weights).
                The default is "linearized" for Gaussians, mixtures, and draws by the structure "samples"; other draws
                and points are always "sampled".
            integral: over a Gaussian f: "mackay", "quadrature", "monte_carlo" or "laplace_bridge". The default is
                the likelihood's most accurate; a closed form, where there is one, is always used.
            samples: how many draws, for "sampled" and "monte_carlo" (default 1000) and for posteriors that are draws
                (default all of them).
            generator: a ``torch.Generator`` or an int.
            differentiable: whether the answers keep the graph of x, a tensor that requires a gradient, for Bayesian
                optimisation or active learning. A network's Jacobian of all rows is then written out: some 3 N C P
                numbers of 8 bytes for N rows, C outputs and P weights, kept for as long as the answers are. Without it
                no graph comes back. By "sampled" it draws weights, where the plain call may share noise per output
                unit instead: rows have the same distribution each, and the draws are others.
            top: of a classifier, how many classes of each row are asked for: those of its largest mean outputs, which
                `Predictive.classes` names. They are integrated together with all others; of more than 256 classes a
                linearised posterior takes the others together, as one Gaussian output log Σ exp f, unless the integral
                is "mackay" and the weights are those of the last layer. No covariance of all classes is then computed,
                and the notes say what was done.

        Returns:
            An immutable `Predictive`, in NumPy arrays where x is not a tensor. Tensors have the floating-point type of
            a network's parameters, float32 where these are in half precision.

        Raises:
            UndefinedQuantityError: if the posterior is of a bare log density, which predicts nothing.
            InputError: if x or an option cannot be used.
        """
        if self.function is None:
            raise UndefinedQuantityError("predict: this posterior is of a log density, with no model to predict with.")
        if self.likelihood is None:
            raise self.record.undefined(
                "predict", "that has no likelihood knows no outcomes. Ask for joint_latent or sample_functions."
            )
        if method is not None:
            checks.choice("method", method, ("linearized", "sampled"))
        if samples is not None:
            checks.count("samples", samples)
        self._check_differentiable(x, differentiable)
        if top is not None:
            check_top(top, self.likelihood, self.function.outputs)
        options = Options(method, integral, samples, checks.generator(generator), differentiable, top)
        with torch.set_grad_enabled(differentiable):
            rows, answer = self._answered(x, options, self.function, self.likelihood)
        shift = rows.shift(answer.latent.mean)
        if shift is not None:
            answer = answer._replace(latent=answer.latent.shifted(shift))
        notes = {"posterior": self.record.method, "latent": answer.note}
        if rows.missing is not None:
            notes["missing values"] = rows.missing.note()
        imputed = rows.imputed if self.reader is not None or rows is x else None
        # What comes back follows what went in, also where an estimator reads it.
        arrays = not has_tensors(rows.values if self.reader is None or rows is x else x)
        asked = answer.top if top is None else answer.top or TopClasses.of(answer.latent.mean, top)
        dtype = torch.float64 if arrays else self._dtype
        return Predictive(answer.latent, self.likelihood, arrays, notes, answer.shape, asked, imputed, dtype=dtype)

    def _answered(
        self, x: object, options: Options, function: Model, likelihood: Likelihood
    ) -> tuple[InputRows, Answer]:
        """The rows that were read first, which are all of them unless x is in batches, and the answer for all."""
        start, view = options.generator.get_state(), options.view(function)
        first: InputRows | None = None
        answers: list[Answer] = []
        for rows in self._batches(x):
            first = first or rows
            options.generator.set_state(start)  # the same draws of the weights for all batches
            if options.samples is not None:
                draw_count(options.samples, (options.before + len(rows)) * function.outputs)
            answers.append(self._whole(rows, view, likelihood, options))
            options = options._replace(before=options.before + len(answers[-1].latent.mean))
        assert first is not None
        if len(answers) > 1:
            options.generator.set_state(start)
        return first, answers[0].joined(answers[1:], options.generator)

    def _batches(self, x: object) -> Iterator[InputRows]:
        """The model's inputs: all of them at once, or a batch at a time where they come so."""
        found = None if self.reader is not None or isinstance(x, InputRows) else input_batches(x)
        return iter([self._rows(x)]) if found is None else map(InputRows, found)

    def _rows(self, x: object) -> InputRows:
        """The model's inputs, and which of them stand for missing values."""
        if isinstance(x, InputRows):
            return x
        return InputRows(x) if self.reader is None else self.reader(x)

    def _whole(self, rows: InputRows, function: Model, likelihood: Likelihood, options: Options) -> Answer:
        """The distribution of f at all rows, integrated over the values that some of them lack."""
        answer = self._latent(rows.values, function, likelihood, options)
        if rows.missing is None:
            return answer
        if answer.top is not None:
            raise UnsupportedError(
                f"top: expected rows without missing values, got {len(rows.missing.rows)} that lack values. Leave top= "
                "out, or fill them in."
            )
        latent = integrated(
            answer.latent, rows.missing, lambda inputs: self._latent(inputs, function, likelihood, options).latent
        )
        return answer._replace(latent=latent)

    @outside_inference_mode
    def sample_functions(
        self,
        x: object,
        n: int = 1,
        *,
        generator: torch.Generator | int | None = None,
        differentiable: bool = False,
    ) -> Tensor:
        """n functions f at the inputs, joint over them, shape (n, N, *positions, C): one draw of the weights each.

        For a Gaussian posterior the functions are linear in the weights, f(x, θ̂) + J(x) (θ − θ̂), so that their
        covariance is J Σ Jᵀ across all rows; for draws they are f(x, θ) itself.

        Args:
            x: inputs, a loader of them, or a table, as `predict` takes them, N rows; the training mean stands in for a
                missing value.
            n: how many functions.
            generator: a ``torch.Generator`` or an int. An int gives the same functions at other inputs.
            differentiable: whether the functions keep the graph of x, a tensor that requires a gradient, so that they
                can be climbed (Thompson sampling). The weights drawn are the same as without it; the memory is that
                of `predict` with ``differentiable=True``.

        Returns:
            A tensor: where x is one, in the type of `predict`'s answers, else in float64.

        Raises:
            UndefinedQuantityError: if the posterior is of a bare log density.
            InputError: if gradients are asked for and x requires none.
            UnsupportedError: if gradients are asked of an estimator, which reads tables, or of random passes.
        """
        q, function = self._asked("sample_functions", x, differentiable)
        with torch.set_grad_enabled(differentiable):
            source, answered, found = checks.generator(generator), 0, []
            start, tensors = source.get_state(), has_tensors(x)
            for rows in q._batches(x):
                source.set_state(start)  # the same draws of the weights for all batches
                answered += len(rows)
                count = draw_count(n, answered * function.outputs)
                tensors = tensors or (q.reader is None and has_tensors(rows.values))
                f = q._functions(rows.values, function, count, source)
                shift = rows.shift(f)
                found.append(f if shift is None else f + shift)
            return torch.cat(found, 1).to(q._dtype if tensors else torch.float64)

    @outside_inference_mode
    def joint_latent(self, x: object, *, differentiable: bool = False, blocks: int | None = None) -> JointLatent:
        """The mean of f at the inputs and its covariance across all of them, as tensors in float64.

        For a Gaussian posterior the mean is f(x, θ̂) and the covariance J Σ Jᵀ, with a row of J for each output of each
        input: that of the functions that are linear in the weights. For draws both are sample moments, for a mixture
        they are the mixture's, and for a point the covariance is 0. The variance of a difference of two outputs i and j
        is ``c[i, i] + c[j, j] - 2 * c[i, j]``.

        Args:
            x: inputs, or a table, as `predict` takes them, N rows; the training mean stands in for a missing value.
            differentiable: whether both keep the graph of x, a tensor that requires a gradient, as for `predict`.
            blocks: B, where x is B runs of N/B inputs and each run is joint by itself, as the candidates of Bayesian
                optimisation are; ``None`` for all inputs together.

        Returns:
            A named tuple: ``mean`` of shape (N, *positions, C), and ``covariance`` of shape (N C, N C), the outputs in
            row-major order, or (B, N C/B, N C/B). Of a Gaussian posterior they take 24 N C P bytes on the way.

        Raises:
            UndefinedQuantityError: if the posterior is of a bare log density, or draws functions alone (MC dropout).
            InputError: if gradients are asked for and x requires none, or the inputs are no so many blocks.
            UnsupportedError: if gradients are asked of an estimator, which reads tables.
            MemoryBudgetError: if the Jacobian of all inputs does not fit.
        """
        q, function = self._asked("joint_latent", x, differentiable)
        with torch.set_grad_enabled(differentiable):
            rows = q._rows(x)
            if blocks is not None and len(rows) % checks.count("blocks", blocks):
                raise InputError(f"blocks: expected a divisor of the {len(rows)} inputs, got {blocks}.")
            joint = q._joint(rows.values, function, blocks or 1)
            if blocks is None:
                joint = joint._replace(covariance=joint.covariance[0])
        shift = rows.shift(joint.mean)
        return joint if shift is None else joint._replace(mean=joint.mean + shift)

    def _asked(self: P, question: str, x: object, differentiable: bool) -> tuple[P, Model]:
        """The posterior and the model that answer a question about f, with the graph of x where that is asked for."""
        if self.function is None:
            raise UndefinedQuantityError(f"{question}: this posterior is of a log density, with no model.")
        self._check_differentiable(x, differentiable)
        q = self._with_graph() if differentiable else self
        assert q.function is not None
        return q, q.function

    def _check_differentiable(self, x: object, differentiable: bool) -> None:
        """Checks that gradients can be had where they are asked for.

        Raises:
            InputError: if x requires no gradient.
            UnsupportedError: if the posterior reads tables.
        """
        if checks.flag("differentiable", differentiable) and not (torch.is_grad_enabled() and requires_grad(x)):
            raise InputError(
                "differentiable: expected x to be a tensor that requires a gradient, with gradients on, got one that "
                "has none. Call x.requires_grad_(), and leave torch.no_grad()."
            )
        if differentiable:
            require_no_reader("differentiable", self.reader)

    @logged
    @outside_inference_mode
    def condition(self, data: object) -> Posterior:
        """The posterior after more data: this one becomes the prior of the same inference.

        Args:
            data: (X, y), X as `predict` takes it and y as the likelihood does; for a network also a DataLoader or a
                Dataset.

        Raises:
            UndefinedQuantityError: if this posterior is no single Gaussian (draws, a point, a mixture), or its
                inference cannot go on (a log density's; `function_space`, where `laplace` in the structure "full" can).
            UnsupportedError: if the curvatures of its structure do not add up ("ekfac"; take "kfac").
        """
        prior = self._as_prior()
        if self.infer is None:
            self._refuse_lost("condition", "infer")
            raise self.record.undefined("condition", "cannot be updated with data.")
        x, *others = data if isinstance(data, tuple) else (data,)
        if self.reader is None:
            return with_names(self.infer(prior, x, *others), self.record.names)
        after = with_names(self.infer(prior, self._rows(x).values, *others), self.record.names)
        return replace(cast(Any, after), reader=self.reader)

    @outside_inference_mode
    def log_evidence(self, *, prior_precision: Any = None, noise_variance: Any = None) -> Tensor:
        """log p(data), a float64 scalar.

        Args:
            prior_precision: another one than the posterior's own, in any form that made the posterior; the weights
                stay where they are. Differentiable where it is a tensor that requires a gradient.
            noise_variance: the same for the noise of a Gaussian likelihood.

        Raises:
            UndefinedQuantityError: where the approximation defines none, or none of other hyperparameters.
        """
        if prior_precision is None and noise_variance is None:
            return self.record.log_evidence()
        if self.fit is None:
            self.record.log_evidence()
            self._refuse_lost("log_evidence", "fit")
            raise self.record.undefined(
                "log_evidence", "knows it at its own prior and noise alone. Fit again with other ones."
            )
        return self.fit.log_evidence(prior_precision, noise_variance)

    @property
    def elbo(self) -> Tensor:
        """A lower bound on log p(data), a float64 scalar.

        Raises:
            UndefinedQuantityError: where the approximation gives no bound.
        """
        return self.record.elbo()

    @property
    def elbo_terms(self) -> Mapping[str, Tensor]:
        """The terms whose sum is `elbo`.

        Raises:
            UndefinedQuantityError: where the approximation gives no bound.
        """
        self.record.elbo()
        return dict(self.record.elbo_terms or {})

    @property
    def trace(self) -> Mapping[str, Sequence[float]]:
        """Numbers per iteration of the fit, such as the objective."""
        return self.record.trace

    def summary(self) -> str:
        """What the posterior is and how it was made, in a few lines."""
        lines = [f"Posterior by {self.record.method} over {' or '.join(map(str, self.sizes))} weights"]
        if self.record.evidence is not None:
            lines.append(f"  log evidence: {float(self.record.evidence):.4f}")
        if self.record.elbo_terms is not None:
            lines.append(f"  evidence lower bound: {float(self.elbo):.4f}")
        likelihood = {} if self.likelihood is None else described(self.likelihood)
        notes = {
            **self.record.notes,
            **{name: each for name, each in likelihood.items() if name not in self.record.notes},
        }
        lines += [f"  {name}: {value}" for name, value in notes.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.summary()

    @notebook.shows
    def _repr_html_(self) -> str:
        return notebook.summary(self.summary())

    def save(self, path: str | Path, *, metadata: Mapping[str, Any] | None = None) -> Path:
        """Writes the posterior into one file, from which `bayescope.load` has it again: predictions to the last bit.

        The file has no data and no code. It has the curvature beside the precision, so that `condition`,
        `log_evidence` at other hyperparameters and `tune_prior` answer as before; the training rows on which
        `tune_prior` compares the posterior with its network are not in it, so that after loading it does not warn. A
        network of torch's own layers is described in the file; for one of another class, `load` asks for the module.
        Equal posteriors give equal bytes.

        Args:
            path: the file, by custom with the suffix ".bayes"; one of that name is replaced in a single step.
            metadata: what is to stand beside it: text, numbers, truth values, ``None``, lists and mappings of these.

        Returns:
            The path.

        Raises:
            UnsupportedError: if a part is the caller's own code: a likelihood, a transform.
            InputError: if the file cannot be written.
        """
        return save(self, path, summary=self.summary(), metadata=metadata)

    @outside_inference_mode
    def predictive_module(self, example: object) -> nn.Module:
        """The predictive of a last-layer posterior as a module of plain tensor operations, for ``torch.export``.

        It returns the latent mean and the latent variance, shape (N, *positions, C) each, and a third tensor, which
        `predict` calls ``variance`` or ``probs``: the variance of y under the Gaussian likelihood, and the
        probabilities of the classes under the others. Probabilities are those of ``integral="mackay"``, σ(κ μ) or
        softmax(κ μ) with κ = (1 + πσ²/8)^(−½), and exact for a probit link.

        Args:
            example: inputs as the network takes them, a row or more: the network is run on them.

        Raises:
            UnsupportedError: if the posterior is not Gaussian over the weights of one ``torch.nn.Linear`` whose output
                is f, or of a linear model; or the likelihood is another than gaussian, bernoulli, probit, categorical.
            InputError: if the network cannot be run on the example.
        """
        return predictive_module(self, example)

    @outside_inference_mode
    def export(self, path: str | Path, example: object) -> Path:
        """Writes `predictive_module` as an ONNX file with the inputs' rows as its dynamic axis.

        The file has the outputs "latent_mean", "latent_variance" and either "variance" or "probs". A runtime needs
        neither bayescope nor torch.

        Args:
            path: the file, by custom with the suffix ".onnx".
            example: inputs as for `predictive_module`; the file takes rows of the same shape.

        Returns:
            The path.

        Raises:
            MissingDependencyError: if onnxscript is not installed.
            UnsupportedError: as for `predictive_module`.
            InputError: if the network cannot be run on the example, or the file cannot be written.
        """
        return export_onnx(self, path, example)

    def _check_stored(self) -> None:
        """Checks that what a file has is over the same weights.

        Raises:
            InputError: if it is not.
        """
        shapes: set[tuple[int, ...]] = {(size,) for size in self.sizes}
        if isinstance(location := getattr(self, "location", None), Tensor):
            shapes.add(tuple(location.shape))
        if self.function is not None and len(self.sizes) == 1:
            shapes.add((self.function.dim,))
        if self.record.parameters is not None:
            shapes.add((self.record.parameters.dim,))
        if len(shapes) > len(set(self.sizes)):
            raise InputError(f"posterior: expected parts over the same weights, got shapes {sorted(shapes)}.")
        if self.record.names and (len(self.record.names),) != self.sizes:
            raise InputError(f"posterior: expected a name for each weight, got {len(self.record.names)}.")

    def _refuse_lost(self, quantity: str, part: str) -> None:
        """Refuses what takes more than the posterior's file held."""
        if part in self.lost:
            raise UndefinedQuantityError(
                f"{quantity}: this posterior by {self.record.method} was loaded from a file that does not hold what it "
                "takes: code of your own, such as an optimizer, or a file of an earlier bayescope. Ask for it before "
                "saving, or fit again."
            )

    def to_arviz(
        self, *, data: tuple[Any, Any] | None = None, draws: int = 1000, generator: torch.Generator | int | None = None
    ) -> Any:
        """The draws as ArviZ's ``InferenceData``, from its version 1 on a ``DataTree``: PSIS-LOO, R-hat, plots.

        The weights are the variable "theta" along "weight", by their `names`; named parameters of a log density are a
        variable each. What the sampler reports of each draw
        stands in ``sample_stats``.

        Args:
            data: (X, y), as `condition` takes them; with it each row's log likelihood stands in ``log_likelihood``, y
                drawn at each draw of the weights in ``posterior_predictive``, and y itself in ``observed_data``.
            draws: how many, for posteriors that are not draws themselves.
            generator: a ``torch.Generator`` or an int.

        Raises:
            MissingDependencyError: if ArviZ is not installed.
            UndefinedQuantityError: if data are given to the posterior of a bare log density.
        """
        groups = self.groups(data, draws, generator)
        if self.record.parameters is not None:
            return inference_data(groups)
        return inference_data(groups, dims={"theta": ["weight"]}, coords={"weight": list(self.names)})

    def groups(self, data: tuple[Any, Any] | None, draws: int, generator: torch.Generator | int | None) -> Groups:
        """The groups of `to_arviz`, each variable as an array; weights without names are the variable "theta"."""
        source = checks.generator(generator)
        theta = self._chains(checks.count("draws", draws), source)
        variables = {"theta": theta} if self.record.parameters is None else self.named(theta)
        groups: Groups = {"posterior": {name: each.numpy() for name, each in variables.items()}}
        if self.statistics:
            groups["sample_stats"] = {name: values.numpy() for name, values in self.statistics.items()}
        if data is None:
            return groups
        if self.function is None or self.likelihood is None:
            raise UndefinedQuantityError("to_arviz: the posterior of a log density has no rows. Pass no data.")
        rows = self._rows(data[0])
        x, model = self.function.inputs(rows.values), self._at_draws(self.function)
        return groups | row_groups(theta, x, data[1], model, self.likelihood, source, rows.offset)

    def _at_draws(self, function: Model) -> Model:
        """The model as drawn weights are read by default."""
        return function


def with_names(q: P, names: Sequence[str]) -> P:
    """A posterior whose weights have these names."""
    return cast(P, replace(cast(Any, q), record=replace(q.record, names=tuple(names))))


def noted(q: P, notes: Mapping[str, str]) -> P:
    """A posterior with more lines in its summary."""
    return cast(P, replace(cast(Any, q), record=replace(q.record, notes={**q.record.notes, **notes})))
