"""The laws of the unitary algebra, over every matrix there is."""

import copy
import io
import math

import numpy as np
import pytest
import safetensors.torch
import torch

from urnn.cell import UNITARIES
from urnn.unitary import (
    Adjoint,
    Compose,
    Diagonal,
    Fourier,
    Permutation,
    Prepared,
    Reflection,
    Spectral,
    Unitary,
    arjovsky,
)


def in_dtype(make, n, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return make(n)
    finally:
        torch.set_default_dtype(before)


def naive(n):
    V, D = arjovsky(n), Diagonal(n)
    return V @ D @ V.H


MATRICES = {
    "diagonal": Diagonal,
    "reflection": Reflection,
    "permutation": Permutation,
    "fourier": Fourier,
    "inverse fourier": lambda n: Fourier(n).H,
    "arjovsky": arjovsky,
    "its adjoint": lambda n: arjovsky(n).H,
    "spectral": Spectral,
    "orthogonal": lambda n: Spectral(n, real=True),
    "shared": naive,
}
assert set(UNITARIES) <= set(MATRICES)
SIZES = (1, 2, 3, 7, 8, 13, 64, 101)
DTYPES = (torch.float32, torch.float64)
TOLERANCE = {torch.complex64: 1e-5, torch.complex128: 1e-12}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", MATRICES)
def test_unitary(name, n, dtype):
    W = in_dtype(MATRICES[name], n, dtype)
    tolerance = TOLERANCE[dtype.to_complex()]
    z = torch.randn(4, n, dtype=dtype.to_complex())
    torch.testing.assert_close(W(z).norm(dim=-1), z.norm(dim=-1), rtol=tolerance, atol=0)
    assert (W.H(W(z)) - z).abs().max() < tolerance * 4
    assert (W(W.H(z)) - z).abs().max() < tolerance * 4
    M = W.as_matrix(dtype.to_complex())
    identity = torch.eye(n, dtype=M.dtype)
    assert (M @ M.mH - identity).abs().max() < tolerance
    assert (M.mH @ M - identity).abs().max() < tolerance
    assert (z @ M.mT - W(z)).abs().max() < tolerance * 4
    assert (W.H.as_matrix(M.dtype) - M.mH).abs().max() < tolerance
    assert W.H.size == W.size == n


def test_as_matrix_has_the_dtype_of_the_parameters():
    assert arjovsky(3).as_matrix().dtype == torch.complex64
    assert arjovsky(3, dtype=torch.float64).as_matrix().dtype == torch.complex128
    assert Fourier(3).as_matrix().dtype == torch.complex64
    assert Permutation(3).as_matrix().dtype == torch.complex64
    for W in (arjovsky(3, dtype=torch.float64), Spectral(3), Fourier(3)):
        for dtype in (torch.complex64, torch.complex128):
            assert W.as_matrix(dtype).dtype == dtype


@pytest.mark.parametrize("n", [1, 5, 12])
def test_the_adjoint_of_a_product(n):
    A, B, C = (arjovsky(n, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(
        (A @ B @ C).H.as_matrix(), (C.H @ B.H @ A.H).as_matrix(), rtol=0, atol=1e-13
    )
    torch.testing.assert_close(
        (A @ (B @ C)).as_matrix(), A.as_matrix() @ B.as_matrix() @ C.as_matrix(), rtol=0, atol=1e-13
    )
    assert A.H.H.as_matrix().equal(A.as_matrix())


def test_products_are_taken_apart():
    n = 4
    D, R, F = Diagonal(n), Reflection(n), Fourier(n)
    W = (D @ R) @ (F @ D.H)
    assert [type(f) for f in W.factors] == [Diagonal, Reflection, Fourier, Adjoint]
    assert next(iter(W.factors)) is D and W.factors[-1].of is D
    assert len(W.factors) == 4 and W.factors[1:3] == [R, F]
    assert repr(W) == "Diagonal(4) @ Reflection(4) @ Fourier(4) @ Diagonal(4).H"
    assert [type(f) for f in W.H.factors] == [Diagonal, Adjoint, Adjoint, Adjoint]


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 3.0, 1e6, 1e30])
def test_a_reflection_does_not_depend_on_the_scale_of_v(scale):
    R = Reflection(9)
    z = torch.randn(3, 9, dtype=torch.complex64)
    before = R(z)
    with torch.no_grad():
        R.vector.mul_(scale)
    torch.testing.assert_close(R(z), before, rtol=1e-5, atol=1e-6)


def test_v_equal_to_zero_is_no_reflection_and_says_so():
    R = Reflection(3)
    with torch.no_grad():
        R.vector.zero_()
    assert R(torch.ones(3, dtype=torch.complex64)).isnan().all()


def test_permutation_index():
    P = Permutation(5, index=[3, 0, 4, 1, 2])
    z = torch.arange(5).to(torch.complex64)
    assert P(z).real.tolist() == [3, 0, 4, 1, 2]
    assert P.state_dict()["index"].dtype == torch.int64
    assert sorted(Permutation(50).index.tolist()) == list(range(50))


def test_lemma_1():
    """A real orthogonal matrix has its eigenvalues in conjugate pairs, and the other way round."""
    for n in (1, 2, 5, 8):
        W = Spectral(n, real=True, dtype=torch.float64)
        assert sum(p.numel() for p in W.parameters()) == n // 2
        M = W.as_matrix()
        assert M.imag.abs().max() < 1e-12
        assert (M.real @ M.real.mT - torch.eye(n)).abs().max() < 1e-12
        spectrum = np.linalg.eigvals(M.real.detach().numpy())
        assert np.allclose(np.abs(spectrum), 1, atol=1e-10)
        by_angle = np.sort(np.angle(spectrum))
        assert np.allclose(by_angle, np.sort(-by_angle), atol=1e-10)
    free = Spectral(6, dtype=torch.float64)  # phases that are not tied: not real
    assert free.as_matrix().imag.abs().max() > 0.1


def test_lemma_1_the_other_way_round():
    """The eigenvectors and phases of any rotation are a `Spectral`, which is that rotation."""
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(7, 7)))[0]
    Q *= np.linalg.det(Q)  # one real eigenvalue, 1
    values, vectors = np.linalg.eig(Q)
    upper = np.flatnonzero(values.imag > 1e-9)
    real = np.flatnonzero(np.abs(values.imag) < 1e-9)
    V = np.concatenate([vectors[:, upper], vectors[:, upper].conj(), vectors[:, real]], axis=1)
    W = Spectral(7, real=True, dtype=torch.float64)
    with torch.no_grad():
        W.phase.copy_(torch.from_numpy(np.angle(values[upper])))
        W.basis.copy_(torch.from_numpy(np.stack([V.real, V.imag])))
    np.testing.assert_allclose(W.as_matrix().detach().numpy(), Q, atol=1e-12)


def test_the_real_block_form_of_a_complex_product():
    """Equation 7: [Re Wh; Im Wh] = [A −B; B A] [Re h; Im h]."""
    W = arjovsky(6, dtype=torch.float64)
    M, h = W.as_matrix(), torch.randn(6, dtype=torch.complex128)
    A, B = M.real, M.imag
    block = torch.cat([torch.cat([A, -B], 1), torch.cat([B, A], 1)])
    expected = block @ torch.cat([h.real, h.imag])
    torch.testing.assert_close(torch.cat([W(h).real, W(h).imag]), expected)


def test_the_paper_s_matrix_from_its_definitions():
    n = 7
    W = arjovsky(n, dtype=torch.float64)
    named = dict(W.named_parameters())
    phase = {3: "factors.0.phase", 2: "factors.3.phase", 1: "factors.7.phase"}
    D = {i: np.diag(np.exp(1j * named[key].detach().numpy())) for i, key in phase.items()}

    def reflection(key):
        re, im = named[key].detach().numpy()
        v = re + 1j * im
        return np.eye(n) - 2 * np.outer(v, v.conj()) / np.vdot(v, v).real

    R1, R2 = reflection("factors.5.vector"), reflection("factors.1.vector")
    jk = np.outer(np.arange(n), np.arange(n))
    F = np.exp(-2j * np.pi * jk / n) / math.sqrt(n)
    P = np.zeros((n, n))
    P[np.arange(n), dict(W.named_buffers())["factors.4.index"].numpy()] = 1
    expected = D[3] @ R2 @ np.linalg.inv(F) @ D[2] @ P @ R1 @ F @ D[1]
    np.testing.assert_allclose(W.as_matrix().detach().numpy(), expected, atol=1e-14)
    z = torch.randn(n, dtype=torch.complex128)
    np.testing.assert_allclose(W(z).detach().numpy(), expected @ z.numpy(), atol=1e-14)


@pytest.mark.parametrize("name", MATRICES)
def test_gradcheck(name):
    W = in_dtype(MATRICES[name], 5, torch.float64)
    z = torch.randn(2, 5, dtype=torch.complex128, requires_grad=True)
    parameters = tuple(W.parameters())
    assert torch.autograd.gradcheck(lambda z, *_: W(z), (z, *parameters))
    assert torch.autograd.gradcheck(lambda *_: W.H.as_matrix(torch.complex128), parameters or (z,))


def test_a_factor_used_twice_is_one_factor():
    W = naive(6)
    names = [name for name, _ in W.named_parameters()]
    assert [k for k in W.state_dict() if "index" not in k] == names
    assert sum(p.numel() for p in W.parameters()) == 7 * 6 + 6
    z = torch.randn(6, dtype=torch.complex64)

    twin = copy.deepcopy(W)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(0.3)
    M = twin.as_matrix()
    assert (M @ M.mH - torch.eye(6)).abs().max() < 1e-5  # V and V.H moved together
    assert (M - W.as_matrix()).abs().max() > 0.01

    data = safetensors.torch.save(W.state_dict())
    other = naive(6)
    other.load_state_dict(safetensors.torch.load(data))
    assert other(z).equal(W(z))
    buffer = io.BytesIO()
    torch.save(W, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False)(z).equal(W(z))


def test_the_adjoint_may_come_first():
    V, D = Reflection(4), Diagonal(4)
    W = V.H @ D @ V
    assert set(W.state_dict()) == {"factors.0.vector", "factors.1.phase"}
    M = V.as_matrix().mH @ D.as_matrix() @ V.as_matrix()
    torch.testing.assert_close(W.as_matrix(), M)


class Turned(Compose):
    """A user's own product, which is not the product of its factors."""

    def prepare(self):
        p = super().prepare()
        return Prepared(lambda z: 1j * p.apply(z), lambda z: -1j * p.adjoint(z))


def test_the_adjoint_of_a_subclass_of_compose():
    z = torch.randn(3, dtype=torch.complex64)
    W = Turned(Diagonal(3), Reflection(3))
    torch.testing.assert_close(W.H(W(z)), z)
    W = Diagonal(3) @ W
    torch.testing.assert_close(W.H(W(z)), z)


@pytest.mark.parametrize("real", [False, True])
def test_a_spectral_that_becomes_float64_is_unitary_to_float64(real):
    W = Spectral(33, real=real).double()
    M = W.as_matrix()
    assert (M @ M.mH - torch.eye(33)).abs().max() < 1e-13
    assert not real or M.imag.abs().max() < 1e-13


class Rotation(Unitary):
    """A user's own: one rotation of the first two coordinates."""

    def __init__(self, n):
        super().__init__(n)
        self.angle = torch.nn.Parameter(torch.tensor(0.3))

    def prepare(self):
        c, s = self.angle.cos(), self.angle.sin()

        def turn(z, s):
            a, b = z[..., :1], z[..., 1:2]
            return torch.cat([c * a - s * b, s * a + c * b, z[..., 2:]], -1)

        return Prepared(lambda z: turn(z, s), lambda z: turn(z, -s))


def test_a_matrix_of_one_s_own_composes():
    W = Rotation(5) @ arjovsky(5)
    M = W.as_matrix()
    assert (M @ M.mH - torch.eye(5)).abs().max() < 1e-5
    assert W.H(W(M)).sub(M).abs().max() < 1e-5


def test_seven_parameters_a_unit():
    for n in (1, 10, 1000):
        assert sum(p.numel() for p in arjovsky(n).parameters()) == 7 * n
        assert sum(t.numel() for t in arjovsky(n).state_dict().values()) == 8 * n


def test_a_size_whose_dense_matrix_would_not_fit():
    W, z = arjovsky(2**20), torch.randn(2**20, dtype=torch.complex64)  # dense: 8 TiB
    with torch.no_grad():
        torch.testing.assert_close(W.H(W(z)), z, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Diagonal(0), ValueError, "size must be a positive integer; got 0"),
        (lambda: Diagonal(-3), ValueError, "got -3"),
        (lambda: Fourier(2.0), TypeError, "got 2.0"),
        (lambda: Fourier(True), TypeError, "got True"),
        (lambda: Diagonal(3) @ Diagonal(4), ValueError, r"sizes \[3, 4\]"),
        (lambda: Diagonal(3) @ torch.ones(3), TypeError, r"call W\(z\)"),
        (lambda: Diagonal(3) @ 2, TypeError, "unsupported operand"),
        (lambda: Compose(), ValueError, "at least one factor"),
        (lambda: Compose(Diagonal(2), 3), TypeError, "got 3"),
        (lambda: Diagonal(3)(torch.ones(3)), TypeError, "acts on complex tensors; got torch.float"),
        (
            lambda: Diagonal(3)(torch.ones(2, 4, dtype=torch.complex64)),
            ValueError,
            r"last dimension of 3; got a tensor of shape \(2, 4\)",
        ),
        (lambda: Permutation(3, index=[0, 1]), ValueError, r"needs 3 integers; .*\(2,\)"),
        (
            lambda: Permutation(2, index=[True, False]),
            ValueError,
            "needs 2 integers; got torch.bool",
        ),
        (lambda: Permutation(3, index=[0, 1, 1]), ValueError, r"once; got \[0, 1, 1\]"),
        (lambda: Unitary(3), TypeError, "abstract"),
    ],
)
def test_bad_input(make, error, words):
    with pytest.raises(error, match=words):
        make()
