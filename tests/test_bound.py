"""The paper's theorem: with b ≤ 0, or with ReLU on a real orthogonal W, gradients never grow."""

from itertools import pairwise

import pytest
import torch

from urnn import UnitaryRNN
from urnn.functional import mod_relu
from urnn.ops import reference
from urnn.unitary import Diagonal, Spectral, Unitary, arjovsky


def gradient_norms(W: Unitary, sigma, steps, u, h_0):
    """Return ‖∂C/∂h_t‖ for t = 0 … L, where C is a random linear cost of h_L alone."""
    prepared = W.prepare()
    states = [h_0.requires_grad_()]
    for t in range(steps):
        states.append(sigma(prepared.apply(states[-1]) + u[t]))
    cost = (states[-1] * torch.randn_like(states[-1])).real.sum()
    return [g.norm().item() for g in torch.autograd.grad(cost, states)]


def bounded(norms):
    return all(before <= after * (1 + 1e-12) for before, after in pairwise(norms))


def noise(*shape):
    return torch.randn(*shape, dtype=torch.complex128)


@pytest.mark.parametrize("leak", [0.0, 0.5])
@pytest.mark.parametrize("make", [arjovsky, Spectral, Diagonal])
@pytest.mark.parametrize("seed", range(5))
def test_with_b_at_most_zero_gradients_never_grow(make, leak, seed):
    torch.manual_seed(seed)
    n, steps = 17, 60
    W = make(n, dtype=torch.float64)
    b = -torch.rand(n, dtype=torch.float64) * 0.2
    norms = gradient_norms(W, lambda z: mod_relu(z, b, leak), steps, noise(steps, n), noise(n))
    assert bounded(norms)


def test_at_b_zero_gradients_are_kept_exactly():
    n, steps = 17, 200
    W, b = arjovsky(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    norms = gradient_norms(W, lambda z: mod_relu(z, b), steps, noise(steps, n), noise(n))
    assert max(norms) / min(norms) - 1 < 1e-10


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [16, 17])
def test_the_real_orthogonal_network_with_relu(n, seed):
    """Equations 3 and 4 of the paper."""
    torch.manual_seed(seed)
    steps = 60
    W = Spectral(n, real=True, dtype=torch.float64)
    u, h_0 = noise(steps, n).real, torch.randn(n, dtype=torch.float64)

    def relu(z):
        assert z.imag.abs().max() < 1e-10  # the real W keeps a real state real
        return torch.complex(z.real.relu(), torch.zeros_like(z.real))

    norms = gradient_norms(W, relu, steps, u.to(torch.complex128), h_0.to(torch.complex128))
    assert bounded(norms)
    assert norms[0] < norms[-1]  # dead units lose something


def test_with_b_above_zero_the_bound_breaks():
    """A living unit's tangential derivative is 1 + b/|z|: at |z| = 0.1 and b = 0.1 it is 2.

    One unit, W = 1, no input: from z = 0.1 the modulus grows by b a step, so the product of
    the derivatives along the way is ∏ (1 + b/(0.1 + tb)), which grows without limit: gradients
    explode, though slowly here. Closer to 0 a single step does it, without limit.
    """
    W = Diagonal(1, dtype=torch.float64)
    with torch.no_grad():
        W.phase.zero_()
    b = torch.tensor([0.1], dtype=torch.float64)
    steps = 30

    def norms(modulus):
        """Return the gradients of Im h_L: perpendicular to a real state."""
        states = [torch.tensor([modulus], dtype=torch.complex128, requires_grad=True)]
        for _ in range(steps):
            states.append(mod_relu(W(states[-1]), b))
        return [g.abs().item() for g in torch.autograd.grad(states[-1].imag.sum(), states)]

    found = norms(0.1)
    assert not bounded(found)
    product = 1.0
    for t in range(steps):
        product *= 1 + 0.1 / (0.1 + 0.1 * t)
    assert found[0] == pytest.approx(product)
    assert norms(1e-6)[0] > 1e5


def test_kept_nonpositive_the_bound_survives_training():
    """Steps that push b up leave it at 0, and the gradients bounded; a free b explodes."""
    found = {}
    for name in ("modrelu_nonpositive", "modrelu"):
        torch.manual_seed(0)
        rnn = UnitaryRNN(2, 20, nonlinearity=name, outputs="last", dtype=torch.float64)
        optimiser = torch.optim.SGD([rnn.cells[0].bias], lr=0.05)
        for _ in range(10):
            optimiser.zero_grad()
            (-rnn(torch.randn(10, 8, 2, dtype=torch.float64))[0].norm()).backward()
            optimiser.step()
        cell = rnn.cells[0]
        sigma = reference.nonlinearity(cell.network(cell.first_state()))
        norms = gradient_norms(cell.unitary, sigma, 60, 0.1 * noise(60, 20), noise(20))
        found[name] = bounded(norms)
    assert found == {"modrelu_nonpositive": True, "modrelu": False}
