"""The peers as their own users call them; they are imported where they are called, and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench.networks import BATCH, batches
from bench.turns import Work

LAPLACE_NAMES = {"kfac": "kron", "diagonal": "diag", "full": "full"}


def laplace_backends() -> dict[str, Any]:
    """laplace-torch's backends for the exact GGN."""
    from laplace.curvature.asdl import AsdlGGN
    from laplace.curvature.backpack import BackPackGGN
    from laplace.curvature.curvlinops import CurvlinopsGGN

    return {"CurvlinopsGGN": CurvlinopsGGN, "BackPackGGN": BackPackGGN, "AsdlGGN": AsdlGGN}


def laplace_fit(
    model: nn.Module, x: Tensor, y: Tensor, structure: str, backend: Any, subset: str = "all", **options: Any
) -> Any:
    """A Laplace approximation by laplace-torch, on its defaults."""
    from laplace import Laplace

    posterior = Laplace(
        copy.deepcopy(model), options.pop("likelihood", "classification"), subset_of_weights=subset,
        hessian_structure=LAPLACE_NAMES[structure], backend=backend, **options,
    )  # fmt: skip
    posterior.fit(DataLoader(TensorDataset(x, y), batch_size=BATCH))
    return posterior


def laplace_fits(
    name: str, unit: str, structure: str, model: nn.Module, x: Tensor, y: Tensor, subset: str = "all"
) -> list[Work]:
    """laplace-torch's fit with each of its backends on the given rows."""
    return [
        Work(
            name,
            lambda backend=backend: laplace_fit(model, x, y, structure, backend, subset),  # type: ignore[misc]
            unit,
            f"laplace-torch, {label}",
            len(x),
        )
        for label, backend in laplace_backends().items()
    ]


def laplace_predictions(
    name: str, unit: str, structure: str, model: nn.Module, fitted: tuple[Tensor, Tensor], x: Tensor,
    subset: str = "all", answer: Callable[[Any, Tensor], object] = lambda q, x: q._glm_predictive_distribution(x),
) -> list[Work]:  # fmt: skip
    """laplace-torch's predictions of a few rows, from a fit to a few; of each backend whose fit runs."""
    works = []
    for label, backend in laplace_backends().items():
        try:
            posterior = laplace_fit(model, *fitted, structure, backend, subset)
        except Exception:  # noqa: BLE001 - the fit's own row says so
            continue
        run = lambda posterior=posterior: answer(posterior, x)  # noqa: E731
        works.append(Work(name, run, unit, f"laplace-torch, {label}", len(x)))
    return works


def backpack_pass(model: nn.Module, x: Tensor, y: Tensor, extension: Any) -> None:
    """An epoch of a backpack extension, summed over batches; backpack leaves hooks, so that it gets a copy."""
    from backpack import backpack, extend

    extended, loss = extend(copy.deepcopy(model)), extend(nn.CrossEntropyLoss(reduction="sum"))
    for xb, yb in batches(x, y):
        extended.zero_grad()
        with backpack(extension):
            loss(extended(xb), yb).backward()


def backpack_works(names: Sequence[tuple[str, str]], unit: str, model: nn.Module, x: Tensor, y: Tensor) -> list[Work]:
    """backpack by itself, of works by name and extension; its Kronecker factors are those of each batch."""
    from backpack import extensions

    return [
        Work(name, lambda kind=kind: backpack_pass(model, x, y, kind()), unit, "backpack", len(x))  # type: ignore[misc]
        for name, kind in ((name, getattr(extensions, kind)) for name, kind in names)
    ]


def curvlinops_fit(model: nn.Module, x: Tensor, y: Tensor, corrected: bool, fisher: str) -> None:
    """curvlinops' Kronecker factors, weight and bias together."""
    import curvlinops

    kind = curvlinops.EKFACLinearOperator if corrected else curvlinops.KFACLinearOperator
    model = copy.deepcopy(model)
    operator = kind(
        model, nn.CrossEntropyLoss(reduction="sum"), list(model.parameters()), list(batches(x, y)),
        fisher_type=getattr(curvlinops.FisherType, fisher), separate_weight_and_bias=False, check_deterministic=False,
        num_data=len(x), num_per_example_loss_terms=1,
    )  # fmt: skip
    operator.compute_kronecker_factors()
    if corrected:
        operator.compute_eigenvalue_correction()


def curvlinops_works(
    names: Sequence[tuple[str, bool, str]], unit: str, model: nn.Module, x: Tensor, y: Tensor
) -> list[Work]:
    """curvlinops by itself, of works by name, whether the eigenvalues are corrected, and kind of Fisher."""
    return [
        Work(
            name,
            lambda corrected=corrected, kind=kind: curvlinops_fit(model, x, y, corrected, kind),  # type: ignore[misc]
            unit,
            "curvlinops",
            len(x),
        )
        for name, corrected, kind in names
    ]


def bayesian_torch_network(module: nn.Module, kind: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """The network in bayesian-torch's layers of a kind, and their KL for a row of 60,000."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    peer = copy.deepcopy(module)
    options = {
        "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0, "type": kind,
        "moped_enable": False, "moped_delta": 0.5,
    }  # fmt: skip
    dnn_to_bnn(peer, options)
    return peer, lambda m: get_kl_loss(m) / 60_000


def pyro_step(module: nn.Module) -> Callable[[Tensor, Tensor], object]:
    """A step of Pyro's SVI with independent Gaussians."""
    import pyro
    from pyro.infer import SVI, TraceMeanField_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroSample
    from pyro.nn.module import to_pyro_module_

    peer = copy.deepcopy(module).train()
    to_pyro_module_(peer)
    for layer in peer.modules():
        for name, value in list(layer.named_parameters(recurse=False)):
            prior = pyro.distributions.Normal(torch.zeros_like(value), 1.0).to_event(value.ndim)
            setattr(layer, name, PyroSample(prior))

    def model(x: Tensor, y: Tensor) -> None:
        f = peer(x)
        with pyro.plate("rows", 60_000, subsample=x):
            pyro.sample("y", pyro.distributions.Categorical(logits=f), obs=y)

    pyro.clear_param_store()
    guide = AutoNormal(model, init_scale=0.05)
    return SVI(model, guide, pyro.optim.SGD({"lr": 1e-9}), TraceMeanField_ELBO()).step
