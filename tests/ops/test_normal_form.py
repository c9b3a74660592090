"""The normal form equals the product, in values and gradients, or refuses with a sentence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from urnn.ops.normal_form import (
    SMALL,
    Dense,
    Structured,
    describe,
    normal_form,
    structured_factors,
)
from urnn.ops.normal_form import structured as structured_form
from urnn.unitary import (
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


def structured(W):
    return structured_form(structured_factors(W), torch.complex128, None)


def dense(form):
    """W from its normal form, out of the gauge, by the definition."""
    if isinstance(form, Dense):
        return form.matrix
    n = len(form.d)
    F = torch.fft.fft(torch.eye(n, dtype=form.d.dtype), norm="ortho").mT
    middle = form.e[:, None] * F[form.permutation]
    W = form.d[:, None] * (F.mH @ middle) + form.Q @ form.A.mH
    return form.gauge.conj()[:, None] * (W * torch.exp(1j * form.turn)) * form.gauge


def assert_same(W, tolerance=1e-12):
    structures = not isinstance(structured_factors(W), str)
    form = structured(W) if structures else normal_form(W)
    M, product = dense(form), W.as_matrix()
    assert (M - product).abs().max() < tolerance
    assert (dense(normal_form(W)) - product).abs().max() < tolerance
    probe = torch.randn(M.shape, dtype=M.dtype)
    parameters = list(W.parameters())
    if not parameters:
        return form
    ours = torch.autograd.grad((probe * M).sum().real, parameters, allow_unused=True)
    theirs = torch.autograd.grad((probe * product).sum().real, parameters, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        a, b = (torch.zeros(1) if g is None else g for g in (a, b))
        assert (a - b).abs().max() < 100 * tolerance * (1 + b.abs().max())
    return form


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 31, 64, 129])
def test_the_paper_s_matrix(n):
    form = assert_same(arjovsky(n, dtype=torch.float64))
    assert isinstance(form, Structured)
    assert form.Q.shape == form.A.shape == (n, 2)
    assert_same(arjovsky(n, dtype=torch.float64).H)


def test_the_paper_s_matrix_in_formulas():
    """d = e^{i(ω₁+ω₃)}, e = e^{iω₂}, Q and A as derived."""
    n = 12
    W = arjovsky(n, dtype=torch.float64)
    D3, R2, _, D2, P, R1, F, D1 = W.factors
    form = structured(W)
    v1, v2 = (torch.complex(*(R.vector / R.vector.norm())) for R in (R1, R2))
    d, e = torch.polar(torch.ones(n).double(), D1.phase + D3.phase), torch.exp(1j * D2.phase)
    torch.testing.assert_close(form.gauge, torch.exp(1j * D1.phase))
    torch.testing.assert_close(form.d, d)
    torch.testing.assert_close(form.e, e)
    assert form.permutation.equal(P.index)
    q = F.H(e * v1[P.index])
    torch.testing.assert_close(form.Q, torch.stack([-2 * d * R2(q), -2 * d * v2], 1))
    a2 = F.H(P.H(e.conj() * F(v2)))
    torch.testing.assert_close(form.A, torch.stack([F.H(v1), a2], 1))


@st.composite
def products(draw):
    """Phases and reflections around one Fourier pair, permutations only within it."""
    n = draw(st.integers(1, 12))
    torch.manual_seed(draw(st.integers(0, 10_000)))
    kinds = st.sampled_from(["D", "R", "D.H", "R.H"])
    outside = st.lists(kinds, max_size=3)
    inside = st.lists(st.sampled_from(["D", "R", "P", "D.H", "P.H"]), max_size=5)
    pair = draw(st.sampled_from([("F.H", "F"), ("F", "F.H"), ("F", "F"), ("F.H", "F.H")]))
    names = [*draw(outside), pair[0], *draw(inside), pair[1], *draw(outside)]
    make = {
        "D": lambda: Diagonal(n, dtype=torch.float64),
        "R": lambda: Reflection(n, dtype=torch.float64),
        "P": lambda: Permutation(n),
        "F": lambda: Fourier(n),
    }
    factors = [make[name[0]]() for name in names]
    if draw(st.booleans()) and "F" not in names[0]:  # one factor at two places
        factors.append(factors[0])
        names.append(names[0])
    placed = zip(factors, names, strict=True)
    return Compose(*(f.H if name.endswith(".H") else f for f, name in placed))


@given(products())
@settings(max_examples=80, deadline=None)
def test_random_products(W):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert isinstance(assert_same(W), Structured)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("n", [1, 6])
def test_without_a_fourier_pair(n):
    D1, D2 = (Diagonal(n, dtype=torch.float64) for _ in range(2))
    R1, R2 = (Reflection(n, dtype=torch.float64) for _ in range(2))
    assert isinstance(assert_same(D1 @ R1 @ D2 @ R2 @ D1), Structured)
    assert isinstance(assert_same(D1), Structured)
    assert isinstance(assert_same(R1), Structured)


class Turned(Diagonal):
    def prepare(self):
        p = super().prepare()
        return Prepared(lambda z: p.apply(1j * z), lambda z: p.adjoint(-1j * z))


class Circulant(Unitary):
    """A user's own product of built-in factors, which says so."""

    def __init__(self, n):
        super().__init__(n)
        self.D, self.F = Diagonal(n, dtype=torch.float64), Fourier(n)

    def prepare(self):
        return self.lower().prepare()

    def lower(self):
        return self.F.H @ self.D @ self.F


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda n: Spectral(n, dtype=torch.float64), "Spectral is none of the factors"),
        (lambda n: Turned(n, dtype=torch.float64), "Turned is none of the factors"),
        (lambda n: Fourier(n), "1 Fourier factors, where one pair"),
        (lambda n: arjovsky(n) @ arjovsky(n), "4 Fourier factors"),
        (lambda n: Permutation(n) @ Diagonal(n), "factor 0 is a permutation outside"),
        (
            lambda n: Diagonal(n) @ Fourier(n).H @ Fourier(n) @ Permutation(n),
            "factor 3 is a permutation outside",
        ),
    ],
)
def test_refusals_are_sentences_and_dense(make, sentence):
    W = make(6)
    assert sentence in structured_factors(W)
    assert sentence in describe(W)
    form = normal_form(W, torch.complex128)
    assert isinstance(form, Dense)
    torch.testing.assert_close(form.matrix, W.as_matrix(torch.complex128))


def test_a_matrix_of_one_s_own_says_what_it_is():
    W = Circulant(5)
    assert isinstance(assert_same(W), Structured)
    assert isinstance(assert_same(Diagonal(5, dtype=torch.float64) @ W), Structured)
    assert isinstance(assert_same(W.H), Structured)


def test_float32_is_rounded_once():
    """The preparation runs in float64: what float32 sees is the nearest number."""
    W = arjovsky(64)
    exact = normal_form(W.double())
    W.float()
    for a, b in zip(normal_form(W), exact, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, SMALL])
def test_a_small_matrix_is_dense(n):
    W = arjovsky(n, dtype=torch.float64)
    form = normal_form(W)
    assert isinstance(form, Dense) and isinstance(normal_form(arjovsky(SMALL + 1)), Structured)
    assert (form.matrix - W.as_matrix()).abs().max() < 1e-14
    probe = torch.randn(n, n, dtype=torch.complex128)
    parameters = list(W.parameters())
    ours = torch.autograd.grad((probe * form.matrix).sum().real, parameters)
    theirs = torch.autograd.grad((probe * W.as_matrix()).sum().real, parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
