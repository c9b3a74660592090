"""The loop over stretches of time above the engines: checkpoints and recomputation.

An engine runs a stretch [t₀, t₁) from a given state, forwards and backwards. Here the
stretches are strung together, always cut at the same steps, so that the two kinds of memory
differ in one thing only: "full" keeps the pre-activations z of all steps for the backward
pass, "constant" keeps the state before each stretch and runs the stretch again.

Shapes carry the networks first: (G, L, N, n).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Recurrence:
    """h_t = σ(W h_{t−1} + u_t) for G networks in normal form (see `normal_form`).

    Attributes:
        x: real (G, L, N, H), tokens (G, L, N), or u itself, complex (G, L, N, n).
        table: V transposed, complex (G, H, n); None when x is u.
        h_0: complex (G, N, n).
        bias: b, (G, n); None makes σ the identity.
        readout: U, complex (G, k, n), with o = Re(conj(U) h); None for the states themselves.
        lengths: (G, N) int64, or None.
        matrix: (d, e, π, Q, A, turn), or (W,) for a dense matrix, each with a leading G. The
            engines take turn for the zeros it is, and return its gradient.
        leak: α.
    """

    x: Tensor
    table: Tensor | None
    h_0: Tensor
    bias: Tensor | None
    readout: Tensor | None
    lengths: Tensor | None
    matrix: Sequence[Tensor]
    leak: float


class Engine(Protocol):
    """What an engine of the normal form implements."""

    def forward(
        self, recurrence: Recurrence, h: Tensor, start: int, stop: int, states: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run steps [start, stop) from h; return their z and the last h; fill in states."""

    def read(self, recurrence: Recurrence, states: Tensor) -> Tensor:
        """Return the readouts of states."""

    def state(self, recurrence: Recurrence, z: Tensor) -> Tensor:
        """Return σ(z)."""

    def backward(
        self,
        recurrence: Recurrence,
        h: Tensor,
        z: Tensor,
        grad: Tensor | None,
        grad_h: Tensor,
        start: int,
        gradients: "Gradients",
    ) -> Tensor:
        """Run the steps of z backwards; add to gradients; return the gradient of h before them."""


@dataclass(eq=False)
class Gradients:
    """Where the gradients of a recurrence's tensors are summed up."""

    x: Tensor | None
    table: Tensor | None
    matrix: list[Tensor | None]
    bias: Tensor | None
    readout: Tensor | None

    @classmethod
    def zeros(cls, recurrence: Recurrence, input_gradient: bool) -> "Gradients":
        """Return sums at 0; what has no derivative (tokens, π), or needs none, has no sum."""

        def like(tensor: Tensor | None) -> Tensor | None:
            if tensor is None or not differentiable(tensor):
                return None
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)

        return cls(
            x=like(recurrence.x) if input_gradient else None,
            table=like(recurrence.table),
            matrix=[like(part) for part in recurrence.matrix],
            bias=like(recurrence.bias),
            readout=like(recurrence.readout),
        )


def differentiable(tensor: Tensor) -> bool:
    """Return whether a tensor can have a gradient: tokens, lengths and permutations have none."""
    return tensor.is_floating_point() or tensor.is_complex()


def plan(steps: int) -> list[tuple[int, int]]:
    """Cut L steps into stretches of ⌈√L⌉."""
    length = int(math.sqrt(steps - 1)) + 1
    return [(start, min(start + length, steps)) for start in range(0, steps, length)]


def forward(
    engine: Engine, recurrence: Recurrence, last: bool, keep: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs (none for `last`), the final state, and what is kept.

    keep is "nothing", "full" (all z) or "constant" (the state before each stretch).
    """
    h = recurrence.h_0
    G, N, n = h.shape
    L = recurrence.x.shape[1]
    stretches = plan(L)
    width = n if recurrence.readout is None else recurrence.readout.shape[1]
    dtype = h.dtype if recurrence.readout is None else h.real.dtype
    output = h.new_empty((G, 0 if last else L, N, width), dtype=dtype)
    kept = h.new_empty((G, kept_steps(L, keep), N, n))
    for i, (start, stop) in enumerate(stretches):
        if keep == "constant":
            kept[:, i] = h
        o, states = output[:, start:stop], None
        if not last:
            states = o if recurrence.readout is None else h.new_empty((G, stop - start, N, n))
        z, h = engine.forward(recurrence, h, start, stop, states)
        if keep == "full":
            kept[:, start:stop] = z
        if states is None:
            continue
        if recurrence.readout is not None:
            o.copy_(engine.read(recurrence, states))
        inside = _inside(recurrence.lengths, start, stop)
        if inside is not None:
            o.masked_fill_(~inside, 0)
    return output, h.clone(), kept


def backward(
    engine: Engine,
    recurrence: Recurrence,
    kept: Tensor,
    constant: bool,
    input_gradient: bool,
    grad_output: Tensor | None,
    grad_h: Tensor,
) -> tuple[Gradients, Tensor]:
    """Return the gradients of the recurrence's tensors, and that of h_0."""
    gradients = Gradients.zeros(recurrence, input_gradient)
    stretches = plan(recurrence.x.shape[1])
    for i, (start, stop) in reversed(list(enumerate(stretches))):
        if constant:
            h = kept[:, i]
            z, _ = engine.forward(recurrence, h, start, stop, None)
        else:
            z = kept[:, start:stop]
            h = engine.state(recurrence, kept[:, start - 1]) if start else recurrence.h_0
        grad = None if grad_output is None else grad_output[:, start:stop]
        inside = _inside(recurrence.lengths, start, stop)
        if grad is not None and inside is not None:
            grad = grad.where(inside, 0)
        grad_h = engine.backward(recurrence, h, z, grad, grad_h, start, gradients)
    return gradients, grad_h


def kept_steps(steps: int, keep: str) -> int:
    """Return how many states of (G, N, n) are kept for the backward pass; steps may be symbolic."""
    if keep == "constant":
        length: int = torch.sym_int(torch.sym_sqrt(steps - 1)) + 1  # as in plan
        return 1 + (steps - 1) // length
    return steps if keep == "full" else 0


def _inside(lengths: Tensor | None, start: int, stop: int) -> Tensor | None:
    """Return which of the steps belong to their sequence: (G, T, N, 1), or None for all."""
    if lengths is None:
        return None
    t = torch.arange(start, stop, device=lengths.device)[:, None]
    return (t < lengths[:, None])[..., None]
