"""The recurrence in normal form, its backward pass derived by hand, in plain torch.

The readable middle tier between `reference.py` and the fused kernels: where a kernel and this
disagree, the kernel is wrong; where this and the reference disagree, the calculus is. The
derivation of every line stands in `ops/README.md`. All tensors lead with the networks G.

Conjugates are physical: torch resolves lazy ones on the way into an operator, but not within
one that torch.compile calls, where an elementwise product computes with the unconjugated number.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from urnn.nonlinearity import linear_piece
from urnn.ops.stretches import Gradients, Recurrence
from urnn.unitary.fourier import fft, ifft


class Manual:
    """One stretch of the recurrence forwards and backwards (`stretches.Engine`)."""

    def forward(
        self, recurrence: Recurrence, h: Tensor, start: int, stop: int, states: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run z_t = W h_{t−1} + u_t, h_t = σ(z_t) for t in [start, stop)."""
        W, sigma = application(recurrence), nonlinearity(recurrence)
        z = project(recurrence, start, stop)
        for t in range(stop - start):
            h_t = sigma(z[:, t].add_(W(h)))
            if recurrence.lengths is not None:
                h_t = torch.where((start + t < recurrence.lengths)[..., None], h_t, h)
            h = h_t
            if states is not None:
                states[:, t] = h
        return z, h

    def state(self, recurrence: Recurrence, z: Tensor) -> Tensor:
        """Return σ(z) for z of shape (G, N, n)."""
        return nonlinearity(recurrence)(z)

    def read(self, recurrence: Recurrence, states: Tensor) -> Tensor:
        """Return o = Re(conj(U) h) for states of shape (G, T, N, n)."""
        assert recurrence.readout is not None
        o = _real(states).flatten(1, 2) @ _real(recurrence.readout).mT
        return _steps(o, states)

    def backward(
        self,
        recurrence: Recurrence,
        h: Tensor,
        z: Tensor,
        grad: Tensor | None,
        grad_h: Tensor,
        start: int,
        gradients: Gradients,
    ) -> Tensor:
        """Run g_{t−1} = W* J_t g_t from the last step of z to the first, then sum over them.

        h is the state before the first step, grad the gradient of the outputs, grad_h that of
        the last state.
        """
        unit = None if recurrence.bias is None else polar(recurrence, z)
        later = z if unit is None else unit.state
        if grad is not None and recurrence.readout is not None:
            assert gradients.readout is not None
            rows = grad.flatten(1, 2)
            gradients.readout += _complex(rows.mT @ _real(later.flatten(1, 2)))
            grad = _steps(_complex(rows @ _real(recurrence.readout)), z)

        W_adjoint = adjoint(recurrence)
        delta = torch.empty_like(z)  # δ, the gradient of z and of u
        spectrum = torch.empty_like(z)  # F(d̄ ⊙ δ), of the structured form
        carried = torch.empty_like(z)  # W*δ
        radial = torch.zeros_like(grad_h.real)  # Σ Re(p̄g), the gradient of b
        g = grad_h
        for t in reversed(range(z.shape[1])):
            if grad is not None:
                g = g + grad[:, t]
            inside = None
            if recurrence.lengths is not None:
                inside = (start + t < recurrence.lengths)[..., None]
            g_t = g if inside is None else g.where(inside, 0)
            if unit is None:
                d_t = g_t
            else:
                along, d_t = unit.jacobian(t, g_t)
                radial += along
            delta[:, t] = d_t
            carried[:, t] = W_adjoint(d_t, spectrum[:, t])
            g = carried[:, t] if inside is None else carried[:, t].where(inside, g)

        if gradients.bias is not None:
            gradients.bias += radial.sum(1)
        earlier = torch.cat([h[:, None], later[:, :-1]], dim=1)
        accumulate_matrix(recurrence, gradients, earlier, delta, spectrum, carried)
        accumulate_input(recurrence, delta, start, gradients)
        return g


def nonlinearity(recurrence: Recurrence) -> Callable[[Tensor], Tensor]:
    """Return z ↦ σ(z) on (G, N, n)."""
    if recurrence.bias is None:
        return lambda z: z
    b = recurrence.bias[:, None]
    piece = linear_piece(b, recurrence.leak)
    return lambda z: branches(z, b, *piece)[-1]


def branches(
    z: Tensor, b: Tensor, threshold: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return where σ is linear, 1/|z|, p = z/|z| (0 where linear), and σ(z) = z + bp or slope·z."""
    r = z.abs()
    linear = r <= threshold
    # finite at 0 and for a subnormal |z|, which the linear piece covers
    inverse = r.clamp(min=torch.finfo(r.dtype).tiny).reciprocal()
    phase = torch.where(linear, 0, inverse) * z
    state = torch.where(linear, slope, 1) * z + torch.where(linear, 0, b) * phase
    return linear, inverse, phase, state


class Polar(NamedTuple):
    """What σ and its derivative need of z: p = z/|z|, b/|z| (both 0 where σ is linear), σ(z).

    scale is 1 + b/|z|, or the slope.
    """

    phase: Tensor
    excess: Tensor
    scale: Tensor
    state: Tensor

    def jacobian(self, t: int, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return Re(p̄g) and J_t g, the gradients of b and z_t from that of h_t.

        A living unit scales the component of g along p by 1 and the other by 1 + b/|z|, so
        J g = (1 + b/|z|) g − (b/|z|) Re(p̄g) p; a linear one scales g by its slope.
        """
        p = self.phase[:, t]
        along = p.real * g.real + p.imag * g.imag
        return along, self.scale[:, t] * g - (self.excess[:, t] * along) * p


def polar(recurrence: Recurrence, z: Tensor) -> Polar:
    """Take apart z of shape (G, T, N, n)."""
    assert recurrence.bias is not None
    b = recurrence.bias[:, None, None]
    threshold, slope = linear_piece(b, recurrence.leak)
    linear, inverse, phase, state = branches(z, b, threshold, slope)
    excess = torch.where(linear, 0, b * inverse)
    return Polar(phase, excess, torch.where(linear, slope, 1 + excess), state)


def application(recurrence: Recurrence) -> Callable[[Tensor], Tensor]:
    """Return h ↦ Wh on (G, N, n): d ⊙ F⁻¹(e ⊙ (Fh)[π]) + Q A*h, or the dense product."""
    if len(recurrence.matrix) == 1:
        transposed = recurrence.matrix[0].mT
        return lambda h: h @ transposed
    d, e, index, Q, A, _ = recurrence.matrix
    d, e, A_conj, Q_T = d[:, None], e[:, None], A.conj_physical(), Q.mT
    return lambda h: d * ifft(e * _permute(fft(h), index)) + (h @ A_conj) @ Q_T


def adjoint(recurrence: Recurrence) -> Callable[[Tensor, Tensor], Tensor]:
    """Return (g, spectrum) ↦ W*g on (G, N, n), which leaves F(d̄ ⊙ g) in spectrum.

    W*g = F⁻¹((ē ⊙ F(d̄ ⊙ g))[π⁻¹]) + A Q*g; for a dense matrix there is no spectrum.
    """
    if len(recurrence.matrix) == 1:
        conjugate = recurrence.matrix[0].conj_physical()
        return lambda g, spectrum: g @ conjugate
    d, e, index, Q, A, _ = recurrence.matrix
    d, e = d.conj_physical()[:, None], e.conj_physical()[:, None]
    Q_conj, A_T, inverse = Q.conj_physical(), A.mT, index.argsort(-1)

    def apply(g: Tensor, spectrum: Tensor) -> Tensor:
        q = spectrum.copy_(fft(d * g))
        return ifft(_permute(e * q, inverse)) + (g @ Q_conj) @ A_T

    return apply


def project(recurrence: Recurrence, start: int, stop: int) -> Tensor:
    """Return u = V x of the steps [start, stop), in memory of its own: (G, T, N, n)."""
    x = recurrence.x[:, start:stop]
    if recurrence.table is None:
        return x.clone(memory_format=torch.contiguous_format)
    if x.is_floating_point():
        return _steps(_complex(x.flatten(1, 2) @ _real(recurrence.table)), x)
    return _steps(recurrence.table.gather(1, _token_index(recurrence, x)), x)


def accumulate_matrix(
    recurrence: Recurrence,
    gradients: Gradients,
    h: Tensor,
    delta: Tensor,
    spectrum: Tensor,
    carried: Tensor,
) -> None:
    """Add the gradients of W's normal form: h_{t−1}, δ, F(d̄ ⊙ δ) and W*δ are (G, T, N, n)."""
    h, delta, q, carried = (rows.flatten(1, 2) for rows in (h, delta, spectrum, carried))
    if len(recurrence.matrix) == 1:
        _add(gradients.matrix[0], delta.mT @ h.conj_physical())  # Σ δ h*
        return
    _, e, index, Q, A, _ = recurrence.matrix
    y = _permute(fft(h), index)
    _add(gradients.matrix[0], (delta * ifft(e[:, None] * y).conj_physical()).sum(1))
    _add(gradients.matrix[1], (q * y.conj_physical()).sum(1))
    _add(gradients.matrix[3], delta.mT @ (h @ A.conj_physical()).conj_physical())
    _add(gradients.matrix[4], h.mT @ (delta @ Q.conj_physical()).conj_physical())
    _add(gradients.matrix[5], (carried.imag * h.real - carried.real * h.imag).sum(1))


def accumulate_input(
    recurrence: Recurrence, delta: Tensor, start: int, gradients: Gradients
) -> None:
    """Add the gradients of x and of the table from δ = ∂C/∂u."""
    x = recurrence.x[:, start : start + delta.shape[1]]
    here = None if gradients.x is None else gradients.x[:, start : start + delta.shape[1]]
    if recurrence.table is None:
        _add(here, delta)
    elif x.is_floating_point():
        rows = _real(delta.flatten(1, 2))
        _add(gradients.table, _complex(x.flatten(1, 2).mT @ rows))
        _add(here, _steps(rows @ _real(recurrence.table).mT, x))
    elif gradients.table is not None:
        gradients.table.scatter_add_(1, _token_index(recurrence, x), delta.flatten(1, 2))


def _add(total: Tensor | None, term: Tensor) -> None:
    if total is not None:
        total += term


def _token_index(recurrence: Recurrence, x: Tensor) -> Tensor:
    """Return tokens (G, T, N) as an index of rows into the tables, (G, T·N, n)."""
    return x.flatten(1)[..., None].expand(-1, -1, recurrence.h_0.shape[-1])


def _permute(y: Tensor, index: Tensor) -> Tensor:
    """Return y[π] along the last dimension of (G, N, n), each network with its own π."""
    return y.gather(-1, index[:, None].expand(y.shape))


def _steps(rows: Tensor, like: Tensor) -> Tensor:
    """Return rows (G, T·N, …) as (G, T, N, …), with the T and N of another tensor."""
    steps: Tensor = rows.unflatten(1, like.shape[1:3])
    return steps


def _real(z: Tensor) -> Tensor:
    """View complex (…, n) as real (…, 2n), interleaved."""
    return torch.view_as_real(z.contiguous()).flatten(-2)


def _complex(x: Tensor) -> Tensor:
    """View interleaved real (…, 2n) as complex (…, n)."""
    return torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2)))
