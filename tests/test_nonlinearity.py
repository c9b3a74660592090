"""modReLU and its relatives: values, derivatives, and the places where they go wrong."""

import math

import pytest
import torch
from torch.autograd import gradcheck

import urnn
from urnn.functional import mod_relu

LEAKS = (0.0, 0.1, 0.5, 0.9)


def rho(r, b, leak):
    """DESIGN: max(r + b, αr) for b ≤ 0, min(r + b, r/α) for b > 0."""
    if b <= 0:
        return max(r + b, leak * r)
    return min(r + b, r / leak) if leak else r + b


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("b", [-1.5, -0.2, 0.0, 0.2, 1.5])
def test_values_are_the_definition(b, leak):
    for r in (1e-3, 0.1, 0.5, 1.0, 3.0, 100.0):
        for angle in (0.0, 0.7, 2.0, -3.0):
            z = torch.tensor(r * complex(math.cos(angle), math.sin(angle)), dtype=torch.complex128)
            expected = rho(r, b, leak) * z / r
            value = mod_relu(z, torch.tensor(b, dtype=torch.float64), leak)
            torch.testing.assert_close(value, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_gradcheck(sign, leak):
    z = torch.randn(4, 6, dtype=torch.complex128, requires_grad=True)
    b = (sign * torch.rand(6, dtype=torch.float64)).requires_grad_(sign != 0)
    assert gradcheck(lambda z, b: mod_relu(z, b, leak), (z, b))
    if sign == 0:  # the derivative in b at 0 is one-sided where leak > 0; here, of the living side
        b.requires_grad_()
        g = torch.randn(4, 6, dtype=torch.complex128)
        (grad,) = torch.autograd.grad(mod_relu(z, b, leak), b, g)
        expected = (z.sgn().conj() * g).real.sum(0)
        torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("leak", [0.0, 0.3])
def test_second_derivatives_and_forward_mode(leak):
    z = torch.randn(3, 4, dtype=torch.complex128, requires_grad=True)
    b = (torch.rand(4, dtype=torch.float64) - 0.5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda z, b: mod_relu(z, b, leak), (z, b))
    assert gradcheck(lambda z, b: mod_relu(z, b, leak), (z, b), check_forward_ad=True)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("b", [-0.5, 0.0, 0.5])
def test_at_zero(b, leak, dtype):
    """Value 0; derivative α for b < 0, 1 for b = 0, 1/α (or 0) for b > 0; never NaN."""
    z = torch.zeros(20, dtype=dtype, requires_grad=True)
    bias = torch.full((20,), b, dtype=dtype.to_real(), requires_grad=True)
    h = mod_relu(z, bias, leak)
    assert h.eq(0).all()
    g = torch.randn(20, dtype=dtype)
    h.backward(g)
    slope = {-1: leak, 0: 1.0, 1: 1 / leak if leak else 0.0}[int(math.copysign(1, b)) if b else 0]
    torch.testing.assert_close(z.grad, slope * g)
    assert bias.grad.eq(0).all()


def test_the_norm_is_kept_exactly_at_b_zero():
    z = torch.randn(1000, dtype=torch.complex64)
    assert mod_relu(z, torch.zeros(1000)).equal(z)


@pytest.mark.parametrize("modulus", [1e-24, 1e-30, 1e-37])
def test_small_moduli_do_not_underflow(modulus):
    """re² + im² is 0 in float32 here; the phase must survive all the same."""
    z = torch.full((40,), modulus * (0.6 + 0.8j), dtype=torch.complex64, requires_grad=True)
    h = mod_relu(z, torch.tensor(0.25))
    torch.testing.assert_close(h, torch.full((40,), 0.25 * (0.6 + 0.8j), dtype=torch.complex64))
    (grad,) = torch.autograd.grad(h, z, torch.full((40,), 0.6 + 0.8j))
    torch.testing.assert_close(grad, torch.full((40,), 0.6 + 0.8j), rtol=1e-2, atol=1e-2 / modulus)
    assert grad.isfinite().all()


def test_subnormal_moduli_count_as_zero():
    z = torch.full((40,), 1e-40 + 1e-40j, dtype=torch.complex64, requires_grad=True)
    for b, leak in ((0.5, 0.0), (-0.5, 0.0), (0.0, 0.0), (0.5, 0.1)):
        h = mod_relu(z, torch.tensor(b), leak)
        assert h.abs().max() < 1e-38
        (grad,) = torch.autograd.grad(h, z, torch.ones_like(h))
        assert grad.isfinite().all()


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("b", [-0.5, 0.0, 0.5])
def test_what_is_not_finite_comes_out_so(b, leak):
    inf, nan = math.inf, math.nan
    bad = [complex(nan, 0), complex(0, nan), complex(nan, nan), complex(inf, 0), complex(inf, nan)]
    z = torch.tensor([*bad, 1 + 1j], dtype=torch.complex64)
    h = mod_relu(z, torch.full((6,), b), leak)
    assert not h[:-1].isfinite().any()
    assert h[-1].isfinite()
    assert mod_relu(z[-1:], torch.tensor([nan]), leak).isnan().all()


@pytest.mark.parametrize("leak", [0.1, 0.5, 0.9])
def test_inverse(leak):
    sigma = urnn.ModReLU(50, leak=leak, dtype=torch.float64)
    with torch.no_grad():
        sigma.bias.uniform_(-1, 1)
    z = torch.randn(9, 50, dtype=torch.complex128)
    torch.testing.assert_close(sigma.inverse(sigma(z)), z, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(sigma(sigma.inverse(z)), z, rtol=1e-12, atol=1e-13)
    opposite = mod_relu(sigma(z), -sigma.bias, leak)
    torch.testing.assert_close(sigma.inverse(sigma(z)), opposite)


def test_without_a_leak_there_is_no_inverse():
    with pytest.raises(ValueError, match="no inverse"):
        urnn.ModReLU(3).inverse(torch.zeros(3, dtype=torch.complex64))


def test_kept_nonpositive_and_free_to_come_back():
    sigma = urnn.ModReLU(3, nonpositive=True)
    with torch.no_grad():
        sigma.bias.copy_(torch.tensor([-0.5, 0.0, 0.3]))
    assert sigma.effective_bias.tolist() == [-0.5, 0.0, 0.0]
    sigma.effective_bias.sum().backward()  # descent: b falls
    assert sigma.bias.grad.tolist() == [1.0, 1.0, 1.0]
    sigma.bias.grad = None
    (-sigma.effective_bias.sum()).backward()  # descent: b would rise above 0
    assert sigma.bias.grad.tolist() == [-1.0, 0.0, 0.0]
    z = torch.randn(4, 3, dtype=torch.complex64)
    torch.testing.assert_close(sigma(z), mod_relu(z, torch.tensor([-0.5, 0.0, 0.0])))


def test_split_relu():
    sigma = urnn.SplitReLU(2)
    with torch.no_grad():
        sigma.bias.copy_(torch.tensor([[0.0, 1.0], [0.5, 0.0]]))
    h = sigma(torch.tensor([3 - 4j, -2 - 0.2j]))
    torch.testing.assert_close(h, torch.tensor([3 + 0j, 0j]))
    assert urnn.SplitReLU(2, bias=False).bias is None
    z = torch.randn(5, 2, dtype=torch.complex128, requires_grad=True)
    assert gradcheck(urnn.SplitReLU(2, dtype=torch.float64), (z,))


@pytest.mark.parametrize(
    ("leak", "error"), [(1.0, ValueError), (-0.1, ValueError), ("a", TypeError)]
)
def test_bad_leak(leak, error):
    with pytest.raises(error, match=r"leak must be .*\[0, 1\)"):
        urnn.ModReLU(3, leak=leak)
