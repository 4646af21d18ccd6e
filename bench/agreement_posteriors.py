"""What a posterior says, against closed forms: evidence, predictions, joint samples, seeds, and what queries leave."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayescope as bs
from bench.agreement_peers import fair
from tests.laplace.problems import closed_form, flat, normal, seeded, set_flat, train, with_ones

Record = dict[str, Any]
PRIOR, NOISE = 3.0, 0.4
X, X_NEW = normal(40, 3, seed=1), normal(9, 3, seed=2)
Y = X @ torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64) + 0.3 + NOISE**0.5 * normal(40, 1, seed=3)
DESIGN, NEW = with_ones(X), with_ones(X_NEW)
TRUTH = closed_form(DESIGN, Y[:, 0], torch.full((4,), PRIOR, dtype=torch.float64), NOISE)
COVARIANCE = torch.linalg.inv(TRUTH.precision)


def at_the_mode() -> nn.Linear:
    """A linear model at the mean of its posterior: there all of Laplace is exact."""
    module = nn.Linear(3, 1, dtype=torch.float64)
    set_flat(module, TRUTH.mean)
    return module


def ours(structure: str = "full", **options: Any) -> bs.GaussianPosterior:
    """Our Laplace of it."""
    data = (X, Y)
    return bs.laplace(
        at_the_mode(), data, likelihood=bs.Gaussian(NOISE), prior_precision=PRIOR, structure=structure, **options
    )


def theirs(structure: str = "full", **options: Any) -> Any:
    """laplace-torch's."""
    from laplace import Laplace

    posterior = Laplace(
        at_the_mode(), "regression", subset_of_weights="all", hessian_structure=structure, sigma_noise=NOISE**0.5,
        prior_precision=PRIOR, **options,
    )  # fmt: skip
    posterior.fit(DataLoader(TensorDataset(X, Y), batch_size=16))
    return posterior


def attempt(run: Callable[[], Any], wanted: bool) -> Any:
    """A number, or the name of the error with which a peer refuses; nothing where it is not wanted."""
    if not wanted:
        return None
    try:
        with fair():
            value = run()
    except ImportError:
        return "not to be had here"  # it asks for a package that cannot be installed
    except Exception as failure:  # noqa: BLE001 - a refusal is a result
        return f"refused: {type(failure).__name__}"
    return value if isinstance(value, str) else float(value)


def evidence(peers: bool) -> Record:
    """log Z under a prior precision other than 1."""
    return {
        "what": f"log evidence of a linear-Gaussian model, prior precision {PRIOR:g}: error in nats",
        "bayescope": float(ours().log_evidence() - TRUTH.log_evidence),
        "laplace-torch": attempt(lambda: theirs().log_marginal_likelihood() - TRUTH.log_evidence, peers),
        "right": "0",
    }


def low_rank_evidence(peers: bool) -> Record:
    """The same in the low-rank structure, of full rank."""
    q = ours("low_rank", rank=4, generator=0)
    return {
        "what": f"the same, low rank, prior precision {PRIOR:g}: error in nats",
        "bayescope": float(q.log_evidence() - TRUTH.log_evidence),
        "laplace-torch": attempt(lambda: theirs("lowrank").log_marginal_likelihood() - TRUTH.log_evidence, peers),
        "right": "0",
    }


def function_space_evidence(peers: bool) -> Record:
    """The same in function space."""
    q = bs.function_space(at_the_mode(), (X, Y), likelihood=bs.Gaussian(NOISE), prior_precision=PRIOR)

    def peer() -> Any:
        from laplace.baselaplace import FunctionalLaplace
        from laplace.curvature.curvlinops import CurvlinopsGGN

        posterior = FunctionalLaplace(
            at_the_mode(), "regression", n_subset=len(X), sigma_noise=NOISE**0.5, prior_precision=PRIOR,
            backend=CurvlinopsGGN,
        )  # fmt: skip
        posterior.fit(DataLoader(TensorDataset(X, Y), batch_size=16))
        return posterior.log_marginal_likelihood() - TRUTH.log_evidence

    return {
        "what": "the same, in function space: error in nats",
        "bayescope": float(q.log_evidence() - TRUTH.log_evidence),
        "laplace-torch": attempt(peer, peers),
        "right": "0",
    }


def predictive(peers: bool) -> Record:
    """The variance of f at new inputs."""
    want = (NEW @ COVARIANCE * NEW).sum(1)
    return {
        "what": "variance of f at new inputs: largest relative error",
        "bayescope": float((ours().predict(X_NEW).epistemic.reshape(-1) / want - 1).abs().max()),
        "laplace-torch": attempt(lambda: (theirs()(X_NEW)[1].reshape(-1) / want - 1).abs().max(), peers),
        "right": "0",
    }


def joint_samples(peers: bool) -> Record:
    """The correlation of f at two inputs, in samples of functions."""
    pair, draws = with_ones(X_NEW[:2]), 20_000
    covariance = pair @ COVARIANCE @ pair.T
    right = float(covariance[0, 1] / covariance.diagonal().prod().sqrt())

    def correlation(samples: Tensor) -> Tensor:
        return torch.corrcoef(samples.reshape(draws, 2).T)[0, 1]

    own = ours().sample_functions(X_NEW[:2], draws, generator=0)
    return {
        "what": "correlation of two values of one function, in 20,000 samples",
        "bayescope": float(correlation(own)),
        "laplace-torch": attempt(lambda: correlation(theirs().functional_samples(X_NEW[:2], n_samples=draws)), peers),
        "right": f"{right:.3g}",
    }


def classifier() -> tuple[nn.Module, Tensor, Tensor]:
    """A small network with three classes."""
    module = seeded(lambda: nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)))
    x = normal(60, 2, seed=4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()

    def loss() -> Tensor:
        penalty = 0.5 * sum(parameter.square().sum() for parameter in module.parameters())
        return nn.functional.cross_entropy(module(x), y, reduction="sum") + penalty

    train(module, loss)
    return module, x, y


def last_layer_variance(peers: bool) -> Record:
    """The variance of f at new inputs where only the last layer is random: J A⁻¹Jᵀ with A = Σ JᵀΛJ + P₀ by hand."""
    module, x, y = classifier()
    q = bs.laplace(
        module, (x, y), likelihood="categorical", weights="last_layer", structure="full", prior_precision=PRIOR
    )
    eye, new = torch.eye(3, dtype=torch.float64), X_NEW[:, :2]

    def jacobian(rows: Tensor) -> Tensor:
        hidden = module[:2](rows).detach()
        return torch.cat([torch.kron(eye[None], hidden[:, None]), eye.expand(len(rows), 3, 3)], -1)

    p = module(x).softmax(1).detach()
    J = jacobian(x)
    precision = torch.einsum("ncp,ncd,ndq->pq", J, torch.diag_embed(p) - p[:, :, None] * p[:, None], J)
    precision += PRIOR * torch.eye(len(precision), dtype=torch.float64)
    want = torch.einsum("ncp,pq,ndq->ncd", jacobian(new), torch.linalg.inv(precision), jacobian(new))

    def peer() -> Any:
        from laplace import Laplace

        posterior = Laplace(
            copy.deepcopy(module), "classification", subset_of_weights="last_layer", hessian_structure="full",
            prior_precision=PRIOR,
        )  # fmt: skip
        posterior.fit(DataLoader(TensorDataset(x, y), batch_size=16))
        return (posterior._glm_predictive_distribution(new)[1] - want).norm() / want.norm()

    return {
        "what": f"covariance of f at new inputs, last layer alone, prior precision {PRIOR:g}: relative error",
        "bayescope": float((q.predict(new).latent_cov - want).norm() / want.norm()),
        "laplace-torch": attempt(peer, peers),
        "right": "0",
    }


def seeded_predictions(peers: bool) -> Record:
    """Two predictions from one seed."""
    module, x, y = classifier()
    q = bs.laplace(module, (x, y), likelihood="categorical")
    first, second = (q.predict(X_NEW[:, :2], method="sampled", samples=20, generator=5).probs for _ in range(2))

    def peer() -> Any:
        from laplace import Laplace

        posterior = Laplace(copy.deepcopy(module), "classification", subset_of_weights="all", hessian_structure="full")
        posterior.fit(DataLoader(TensorDataset(x, y), batch_size=16))
        answers = [
            posterior(X_NEW[:, :2], link_approx="mc", n_samples=20, generator=torch.Generator().manual_seed(5))
            for _ in range(2)
        ]
        return (answers[0] - answers[1]).abs().max()

    return {
        "what": "two predictions from one seed: largest difference of a probability",
        "bayescope": float((first - second).abs().max()),
        "laplace-torch": attempt(peer, peers),
        "right": "0",
    }


def what_a_query_leaves(peers: bool) -> Record:
    """The prior precision of a posterior after its evidence at another one was asked for."""
    q = ours()
    assert q.fit is not None
    q.fit.log_evidence(7.0)

    def peer() -> Any:
        posterior = theirs()
        posterior.log_marginal_likelihood(prior_precision=torch.tensor(7.0, dtype=torch.float64))
        return posterior.prior_precision.max()

    return {
        "what": f"prior precision after the evidence at 7 was asked for, {PRIOR:g} before",
        "bayescope": float(q.fit.prior.precision.max()),
        "laplace-torch": attempt(peer, peers),
        "right": f"{PRIOR:g}",
    }


def training_mode(peers: bool) -> Record:
    """Whether a fit leaves the module as it was."""
    module, x, y = classifier()
    module.train()
    bs.laplace(module, (x, y), likelihood="categorical")

    def peer() -> Any:
        from laplace import Laplace

        own = copy.deepcopy(module).train()
        posterior = Laplace(own, "classification", subset_of_weights="all", hessian_structure="full")
        posterior.fit(DataLoader(TensorDataset(x, y), batch_size=16))
        return "training" if own.training else "evaluation"

    return {
        "what": "mode of a module in training mode, after the fit",
        "bayescope": "training" if module.training else "evaluation",
        "laplace-torch": attempt(peer, peers),
        "right": "training",
    }


def full_variational(peers: bool) -> Record:  # noqa: ARG001 - the peer has none
    """Variational inference of the same model, with a full covariance: exact where it has converged."""
    q = bs.variational(
        at_the_mode(), (X, Y), likelihood=bs.Gaussian(NOISE), prior_precision=PRIOR, family="full", epochs=2000,
        lr=0.02, schedule="cosine", generator=0, progress=False,
    )  # fmt: skip
    return {
        "what": "variational inference, full covariance: bound less log evidence, in nats",
        "bayescope": float(q.elbo - TRUTH.log_evidence),
        "right": "0 from below",
    }


def mean_field(peers: bool) -> Record:  # noqa: ARG001 - the peer has none
    """Mean field of it: the precisions are those of the exact posterior's diagonal (Bishop 2006, 10.1.2)."""
    q = bs.variational(
        at_the_mode(), (X, Y), likelihood=bs.Gaussian(NOISE), prior_precision=PRIOR, epochs=2000, lr=0.02,
        samples=8, schedule="cosine", generator=0, progress=False,
    )  # fmt: skip
    want = TRUTH.precision.diagonal().rsqrt()
    return {
        "what": "variational inference, mean field: largest relative error of a standard deviation",
        "bayescope": float((q.covariance.diagonal().sqrt() / want - 1).abs().max()),
        "right": "0",
    }


def exact_evidence_of_glm(peers: bool) -> Record:
    """nn.Linear with a logit link, by the network's Laplace and by the linear model's."""
    y = (Y[:, 0] > 0.3).long()
    estimator = bs.BayesianLogisticRegression(prior_precision=PRIOR, intercept_prior_precision=PRIOR)
    linear = estimator.fit(X.numpy(), y.numpy())
    module = nn.Linear(3, 1, dtype=torch.float64)
    set_flat(module, torch.tensor([*linear.coef_[0], linear.intercept_[0]], dtype=torch.float64))
    network = bs.laplace(module, (X, y[:, None]), likelihood="bernoulli", prior_precision=PRIOR, structure="full")

    def peer() -> Any:
        from laplace import Laplace

        wide = nn.Linear(3, 2, dtype=torch.float64)  # it has no likelihood of one logit
        with torch.no_grad():
            half = flat(module).split([3, 1])
            wide.weight.copy_(torch.stack([-half[0] / 2, half[0] / 2]))
            wide.bias.copy_(torch.cat([-half[1] / 2, half[1] / 2]))
        # Two logits of half the size under half the precision each are the same model with one redundant direction.
        posterior = Laplace(
            wide, "classification", subset_of_weights="all", hessian_structure="full", prior_precision=2 * PRIOR
        )
        posterior.fit(DataLoader(TensorDataset(X, y), batch_size=16))
        return posterior.log_marginal_likelihood() - linear.log_evidence_

    return {
        "what": "logistic regression's log evidence, the network's Laplace less the linear model's: nats",
        "bayescope": float(network.log_evidence()) - float(linear.log_evidence_),
        "laplace-torch": attempt(peer, peers),
        "right": "0",
    }


POSTERIORS = (
    evidence,
    low_rank_evidence,
    function_space_evidence,
    predictive,
    joint_samples,
    last_layer_variance,
    seeded_predictions,
    what_a_query_leaves,
    training_mode,
    exact_evidence_of_glm,
    full_variational,
    mean_field,
)
