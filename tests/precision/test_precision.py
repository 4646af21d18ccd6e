"""Every structure of a precision, against dense float64 linear algebra."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from bayescope.errors import UnsupportedError
from bayescope.precision import Precision
from bayescope.tape import JoinedTape, LinearTape, block_limit
from tests.precision.cases import (
    ADDING,
    CASES,
    blocks,
    joined_tape,
    kronecker,
    lookup_tape,
    normal,
    outer_tape,
    seeded,
    separable,
)

EVERY = [*CASES, "block"]
# rows, positions, outputs
TAPES = {
    "no rows": (0, 2, 3),
    "one row": (1, 1, 3),
    "one output": (5, 3, 1),
    "positions": (5, 3, 3),
    "pairs": (4, 1, 6),
}
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}


def precision_of(name: str) -> Precision:
    return blocks().add_diagonal(0.4) if name == "block" else CASES[name].precision()


@pytest.fixture(params=EVERY)
def precision(request) -> Precision:
    return precision_of(request.param)


def inverse(precision: Precision) -> Tensor:
    return torch.linalg.inv(precision.to_dense())


def test_agrees_with_dense_algebra(precision):
    assert isinstance(precision, Precision)
    dense = precision.to_dense()
    torch.testing.assert_close(dense, dense.mT)
    assert dense.shape == (precision.dim, precision.dim)
    columns = normal(precision.dim, 5, g=seeded(0))
    torch.testing.assert_close(precision.logdet(), torch.logdet(dense), **CLOSE)
    for b in (columns, columns[:, 0], columns[:, :0]):
        torch.testing.assert_close(precision.solve(b), torch.linalg.solve(dense, b), **CLOSE)
        torch.testing.assert_close(precision.multiply(b), dense @ b, **CLOSE)
    torch.testing.assert_close(precision.diagonal(), dense.diagonal(), **CLOSE)
    torch.testing.assert_close(precision.marginal_variance(), inverse(precision).diagonal(), **CLOSE)


def test_the_root_squares_to_the_covariance(precision):
    root = precision.sqrt_solve(torch.eye(precision.dim, dtype=torch.float64))
    torch.testing.assert_close(root @ root.mT, inverse(precision), **CLOSE)
    vector = torch.arange(precision.dim, dtype=torch.float64)
    torch.testing.assert_close(precision.sqrt_solve(vector), root @ vector, **CLOSE)


@pytest.mark.parametrize("name", EVERY)
def test_adding_a_number_returns_a_new_precision(name):
    precision = precision_of(name)
    if "separable" in name:
        precision = CASES[name].data().add_diagonal(0.3)
    before = precision.to_dense().clone()
    added = precision.add_diagonal(2.5).add_diagonal(torch.tensor(0.5))
    torch.testing.assert_close(added.to_dense(), before + 3 * torch.eye(precision.dim, dtype=torch.float64))
    torch.testing.assert_close(added.logdet(), torch.logdet(added.to_dense()), **CLOSE)
    assert torch.equal(precision.to_dense(), before)


@pytest.mark.parametrize("name", CASES)
def test_adding_a_vector(name):
    case = CASES[name]
    prior = torch.as_tensor(case.prior(case.shape, seeded(99)), dtype=torch.float64).expand(case.dim)
    for vector in (prior, 2 * prior):
        expected = case.data().to_dense() + torch.diag(prior + vector)
        added = case.data().add_diagonal(prior).add_diagonal(vector)
        torch.testing.assert_close(added.to_dense(), expected)
        torch.testing.assert_close(added.logdet(), torch.logdet(expected), **CLOSE)


@pytest.mark.parametrize("name", ADDING)
def test_the_sum_of_a_curvature_and_itself_is_twice_it(name):
    """For Kronecker curvatures too: both factors double, and so does what they are divided by."""
    data = CASES[name].data()
    torch.testing.assert_close((data + data).to_dense(), 2 * data.to_dense())
    precision = CASES[name].precision()
    torch.testing.assert_close((precision + data).to_dense(), precision.to_dense() + data.to_dense())
    torch.testing.assert_close((data + precision).logdet(), torch.logdet((precision + data).to_dense()), **CLOSE)


def same(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Each entry within a tolerance of the largest one of its row: a covariance is as exact as its variances."""
    assert actual.dtype == torch.float64
    assert actual.shape == expected.shape
    for row, reference in zip(actual, expected, strict=True):
        assert (row - reference).abs().max() <= TOLERANCE[dtype] * reference.abs().max()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("tape", TAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_output_covariance_is_the_sandwich(name, tape, dtype):
    rows, positions, outputs = TAPES[tape]
    precision = precision_of(name)
    if name == "block":
        tapes = [joined_tape(rows, dtype)]
    else:
        tapes = [outer_tape(CASES[name].shape, rows, positions, outputs, dtype)]
        if "counted" in name:
            tapes.append(lookup_tape(CASES[name].shape, rows, positions, outputs, dtype))
    for read in tapes:
        jacobian = read.jacobian(slice(None)).to(torch.float64)
        expected = jacobian @ inverse(precision) @ jacobian.mT
        for _ in range(2):  # what is kept between calls is as good as what is not
            same(precision.covariance_of(read), expected, dtype)
            same(precision.variance_of(read), expected.diagonal(dim1=-2, dim2=-1), dtype)


@pytest.mark.parametrize("name", ["dense", "low rank", "kronecker, groups"])
@pytest.mark.parametrize("block_bytes", [1, 400, 2**25])
def test_rows_are_read_in_blocks(name, block_bytes):
    case, rows = CASES[name], 7
    read = outer_tape(case.shape, rows, 2, 2, torch.float64)
    jacobian = read.jacobian(slice(None))
    precision = case.precision()
    with block_limit(block_bytes):
        covariance = precision.covariance_of(read)
    same(covariance, jacobian @ inverse(precision) @ jacobian.mT, torch.float64)


@pytest.mark.parametrize("name", ["dense", "diagonal", "low rank"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
def test_linear_models(name, bias, outputs):
    tape = LinearTape(normal(6, 4, g=seeded(1)), outputs, bias)
    precision = CASES[name].curvature((1, 1, tape.dim), seeded(2)).add_diagonal(0.5)
    jacobian = tape.jacobian(slice(None))
    expected = jacobian @ inverse(precision) @ jacobian.mT
    same(precision.covariance_of(tape), expected, torch.float64)
    same(precision.variance_of(tape), expected.diagonal(dim1=-2, dim2=-1), torch.float64)


SAMPLES, FALSE_ALARMS = 20_000, 1e-6


def false_alarm_probability(precision: Precision, samples: Tensor) -> float:
    """How rarely N(0, A⁻¹) gives a scatter matrix as far from A⁻¹ as that of the samples, (P, n).

    With A = C Cᵀ, y = Cᵀx is white: of the P(P + 1)/2 entries of n⁻¹ Σ y yᵀ those off the diagonal have mean 0 and
    variance 1/n, those on it mean 1 and variance 2/n, uncorrelated and for large n Gaussian, so that the sum of the
    squared z-scores is χ².
    """
    dim, n = samples.shape
    white = torch.linalg.cholesky(precision.to_dense()).mT @ samples
    excess = white @ white.mT / n - torch.eye(dim, dtype=torch.float64)
    scores = math.sqrt(n) * torch.cat(
        [excess.diagonal() / math.sqrt(2), excess[tuple(torch.triu_indices(dim, dim, 1))]]
    )
    return float(stats.chi2.sf(float(scores.square().sum()), scores.shape[0]))


@pytest.mark.parametrize("name", EVERY)
def test_samples_have_the_covariance(name):
    """The statistic fails falsely once in 10⁶ seeds; a root transposed by mistake is beyond that."""
    precision = precision_of(name)
    noise = normal(precision.dim, SAMPLES, g=seeded(0))
    assert false_alarm_probability(precision, precision.sqrt_solve(noise)) > FALSE_ALARMS
    root = precision.sqrt_solve(torch.eye(precision.dim, dtype=torch.float64))
    if not torch.allclose(root, root.mT, rtol=1e-6, atol=1e-6):  # some structures have a symmetric root
        assert false_alarm_probability(precision, root.mT @ noise) < FALSE_ALARMS


def test_which_roots_are_not_symmetric():
    """The transpose is planted where it is an error: in all structures but the diagonal and the constant low rank."""
    symmetric = set()
    for name in EVERY:
        precision = precision_of(name)
        root = precision.sqrt_solve(torch.eye(precision.dim, dtype=torch.float64))
        if torch.allclose(root, root.mT, rtol=1e-6, atol=1e-6):
            symmetric.add(name)
    one = {"dense, one weight", "kronecker, one weight"}
    assert symmetric == {"diagonal", "low rank", "low rank, no vectors", "covariance, no columns", *one}


@pytest.mark.parametrize("name", ["kronecker, square", "kronecker, separable prior", "eigenvalue-corrected"])
def test_samples_with_sides_exchanged_are_caught(name):
    """The basis of the outputs transposed where it is applied, that of the inputs left as it is, and the reverse."""
    case = CASES[name]
    precision = case.precision()
    noise = normal(case.dim, SAMPLES, g=seeded(0))
    basis = precision.basis
    for left, right in ((basis.left.mT, basis.right), (basis.left, basis.right.mT)):
        turned = type(basis)(left, right, case.shape)
        wrong = turned.apply(basis.mT.apply(precision.sqrt_solve(noise)))
        assert false_alarm_probability(precision, wrong) < FALSE_ALARMS


@pytest.mark.parametrize("name", [name for name in EVERY if "separable" not in name])
@pytest.mark.global_rng  # gradgradcheck draws the gradients that it starts from
def test_logdet_is_differentiable_in_a_number(name):
    precision = blocks() if name == "block" else CASES[name].data()

    def logdet(log_precision: Tensor) -> Tensor:
        return precision.add_diagonal(log_precision.exp()).logdet()

    start = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(logdet, start)
    assert torch.autograd.gradgradcheck(logdet, start)


@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_of_logdet_is_the_marginal_variance(name):
    """With respect to every single weight's prior, also those directions that leave the structure."""
    data = blocks() if name == "block" else CASES[name].data()
    shape, prior = ((), None) if name == "block" else (CASES[name].shape, CASES[name].prior)
    given = torch.tensor(0.7) if prior is None else torch.as_tensor(prior(shape, seeded(99)))
    vector = given.to(torch.float64).expand(data.dim).clone().requires_grad_()
    precision = data.add_diagonal(vector)
    (gradient,) = torch.autograd.grad(precision.logdet(), vector)
    torch.testing.assert_close(gradient, inverse(precision).diagonal().detach(), **CLOSE)


Answers = dict[str, Tensor]


def answers(precision: Precision, tape: JoinedTape) -> Answers:
    """What every verb but the logdet says; of the root R, which is not unique, R Rᵀ."""
    columns = normal(precision.dim, 2, g=seeded(1))
    root = precision.sqrt_solve(torch.eye(precision.dim, dtype=torch.float64))
    return {
        "solve": precision.solve(columns),
        "solve, one": precision.solve(columns[:, 0]),
        "root": root @ root.mT,
        "covariance": precision.covariance_of(tape),
        "variance": precision.variance_of(tape),
        "multiply": precision.multiply(columns),
        "diagonal": precision.diagonal(),
        "dense": precision.to_dense(),
    }


def dense_answers(matrix: Tensor, tape: JoinedTape) -> Answers:
    """The same from the matrix itself; those that no definition fixes are left out."""
    columns, inverse, u = normal(len(matrix), 2, g=seeded(1)), torch.linalg.inv(matrix), tape.jacobian(slice(None))
    covariance = u @ inverse @ u.mT
    return {
        "solve": inverse @ columns,
        "solve, one": inverse @ columns[:, 0],
        "root": inverse,
        "covariance": covariance,
        "variance": covariance.diagonal(dim1=1, dim2=2),
        "multiply": matrix @ columns,
        "diagonal": matrix.diagonal(),
        "dense": matrix,
    }


@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_in_every_weights_prior_is_that_of_dense_algebra(name):
    """Of all verbs, also in those directions that leave the structure."""
    data = blocks() if name == "block" else CASES[name].data()
    shape, prior = ((), None) if name == "block" else (CASES[name].shape, CASES[name].prior)
    given = torch.tensor(0.7) if prior is None else torch.as_tensor(prior(shape, seeded(99)))
    vector = given.to(torch.float64).expand(data.dim).clone().requires_grad_()
    tape = joined_tape(3, torch.float64) if name == "block" else outer_tape(shape, 3, 2, 3, torch.float64)
    got = answers(data.add_diagonal(vector), tape)
    expected = dense_answers(data.to_dense() + torch.diag(vector), tape)
    for verb, value in expected.items():
        torch.testing.assert_close(got[verb], value, **CLOSE)
        weight = normal(*value.shape, g=seeded(2))
        weight = weight + weight.mT if verb == "root" else weight
        ours, theirs = (
            torch.autograd.grad((weight * v).sum(), vector, retain_graph=True)[0] for v in (got[verb], value)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8, msg=lambda m, verb=verb: f"{verb}: {m}")


def test_gradients_beside_singular_factors_are_finite():
    """Eigenvalues repeat there, and eigenvectors have no derivative."""
    data, prior = kronecker((1, 4, 5), seeded(0), rank=1), separable((1, 4, 5), seeded(1)).requires_grad_()
    columns = normal(20, 2, g=seeded(2))
    ours = data.add_diagonal(prior).solve(columns).square().sum()
    theirs = torch.linalg.solve(data.to_dense() + torch.diag(prior), columns).square().sum()
    torch.testing.assert_close(*(torch.autograd.grad(value, prior)[0] for value in (ours, theirs)))


@pytest.mark.parametrize("name", [name for name in EVERY if "separable" not in name])
def test_every_verb_is_differentiable_in_a_number(name):
    data = blocks() if name == "block" else CASES[name].data()
    shape = () if name == "block" else CASES[name].shape
    tape = joined_tape(2, torch.float64) if name == "block" else outer_tape(shape, 2, 2, 2, torch.float64)
    for verb in (*answers(data.add_diagonal(0.7), tape), "marginal"):

        def value(number: Tensor, verb: str = verb) -> Tensor:
            precision = data.add_diagonal(number)
            return precision.marginal_variance() if verb == "marginal" else answers(precision, tape)[verb]

        assert torch.autograd.gradcheck(value, torch.tensor(0.7, dtype=torch.float64, requires_grad=True)), verb


def test_marginal_variances_have_no_derivative_in_single_weights():
    """It would take all entries of the inverse; without a gradient they are there all the same."""
    for name in ("kronecker", "kronecker, separable prior", "eigenvalue-corrected"):
        case = CASES[name]
        given = torch.as_tensor(case.prior(case.shape, seeded(99)), dtype=torch.float64).expand(case.dim)
        precision = case.data().add_diagonal(given.clone().requires_grad_())
        with pytest.raises(UnsupportedError, match="one per block"):
            precision.marginal_variance()
        with torch.no_grad():
            expected = inverse(precision).diagonal()
            torch.testing.assert_close(precision.marginal_variance(), expected, **CLOSE)


@pytest.mark.parametrize("name", EVERY)
def test_everything_stays_on_the_device_of_the_tensors(name):
    """Under another default device, what was made without a device of its own would not go with the rest."""
    tape = joined_tape(2, torch.float64) if name == "block" else outer_tape(CASES[name].shape, 2, 2, 2, torch.float64)
    data = blocks() if name == "block" else CASES[name].data()
    vector = torch.full((data.dim,), 0.4, dtype=torch.float64)
    with torch.device("meta"):
        twice = data + data if name == "block" or CASES[name].adds else data.scaled(2.0)
        precision = twice.add_diagonal(vector).add_diagonal(0.3)
        answers = [precision.logdet(), precision.diagonal(), precision.marginal_variance(), precision.to_dense()]
        answers += [precision.multiply(vector), precision.solve(vector), precision.sqrt_solve(vector)]
        answers += [precision.covariance_of(tape), precision.variance_of(tape)]
    assert {answer.device.type for answer in answers} == {"cpu"}
