"""What is asked of the engines: one or several recurrences over the same input."""

from dataclasses import dataclass

import torch
from torch import Tensor

from urnn.nonlinearity import Nonlinearity
from urnn.unitary import Unitary


@dataclass(frozen=True, eq=False)
class Network:
    """One recurrence h_t = σ(W h_{t−1} + V x_t) with its readout o_t = U [Re h_t; Im h_t].

    Attributes:
        unitary: W.
        input_weight: [Re V; Im V], (2n, H), or None when x is the complex u itself.
        bias: b, (n,); None makes σ the identity (unless `nonlinearity` is given).
        leak: α.
        nonlinearity: replaces (bias, leak).
        readout: U, (k, 2n), or None.
        h_0: complex (N, n).
        reverse: read each sequence from its end.
    """

    unitary: Unitary
    h_0: Tensor
    input_weight: Tensor | None = None
    bias: Tensor | None = None
    leak: float = 0.0
    nonlinearity: Nonlinearity | None = None
    readout: Tensor | None = None
    reverse: bool = False


@dataclass(frozen=True, eq=False)
class Request:
    """Networks to run over an input, and what is wanted of them.

    Attributes:
        x: real (L, N, H), integer tokens (L, N), or complex (L, N, n).
        networks: they share x; each has its own parameters and direction.
        lengths: (N,) int64, where sequences end before L; None when none does. Steps beyond
            a sequence's end leave its state alone and their outputs are 0.
        last: only the output of each sequence's own final step is wanted.
        constant: keep no states for the backward pass, but recompute them.
    """

    x: Tensor
    networks: tuple[Network, ...]
    lengths: Tensor | None = None
    last: bool = False
    constant: bool = False

    @property
    def steps(self) -> int:
        return self.x.shape[0]


# What an engine answers for each network: (output, h_n), the output real, (L, N, k or 2n) or,
# for the last step only, (N, k or 2n), and h_n complex (N, n).
Answer = tuple[Tensor, Tensor]


def flip_time(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse each sequence of x (L, N, …) within its own length; its own inverse."""
    if lengths is None:
        return x.flip(0)
    t = torch.arange(x.shape[0], device=x.device)[:, None]
    source = torch.where(t < lengths, lengths - 1 - t, t)  # (L, N)
    return x[source, torch.arange(x.shape[1], device=x.device)]


def real_output(h: Tensor) -> Tensor:
    """Return [Re h; Im h] on the last dimension."""
    return torch.cat([h.real, h.imag], dim=-1)


def token_message(tokens: Tensor, categories: int) -> str:
    """Return the sentence for tokens of which one is out of range."""
    low, high = (int(bound) for bound in tokens.aminmax())
    return (
        f"token {low if low < 0 else high} is out of range: with {categories} categories "
        f"(input_size), tokens are 0 … {categories - 1}."
    )
