"""The initialisations: one function per bullet of the paper's list, and the two sets.

`"paper"` is the text of the paper, `"theano"` what its authors' code did instead. The
factors of W draw themselves (`phase_`, `reflection_`) when they are made.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from urnn.cell import UnitaryRNNCell
    from urnn.rnn import UnitaryRNN

    Initialiser = Callable[[UnitaryRNN | UnitaryRNNCell], object]


@torch.no_grad()
def glorot_(weight: Tensor, fan_in: int, fan_out: int) -> Tensor:
    """Draw V or U from U(±√6/√(fan_in + fan_out))."""
    bound = math.sqrt(6 / (fan_in + fan_out))
    return weight.uniform_(-bound, bound)


@torch.no_grad()
def phase_(phase: Tensor) -> Tensor:
    """Draw ω from U[−π, π]."""
    return phase.uniform_(-math.pi, math.pi)


@torch.no_grad()
def reflection_(vector: Tensor, bound: float = 1.0) -> Tensor:
    """Draw the coordinates of v from U[−bound, bound]; the matrix does not depend on bound."""
    return vector.uniform_(-bound, bound)


@torch.no_grad()
def initial_state_(state: Tensor) -> Tensor:
    """Draw the 2n real coordinates of h₀ from U(±√(3/2n)), so that E‖h₀‖² = 1."""
    bound = math.sqrt(3 / state.shape[-1])
    return state.uniform_(-bound, bound)


def paper(module: "UnitaryRNN | UnitaryRNNCell") -> None:
    """Initialise as the text says: Glorot for V ∈ Cⁿˣⁱⁿ and U, zero biases, E‖h₀‖² = 1."""
    for cell in _cells(module):
        glorot_(cell.input_weight, cell.input_size, cell.hidden_size)
        _common(cell)
    _readout(module)


def theano(module: "UnitaryRNN | UnitaryRNNCell") -> None:
    """Initialise as the authors' code did.

    V counts as a real in × 2n matrix in its fans, b starts in U(±0.01), and the reflection
    vectors in U(±√(6/(2 + 2n))): the same matrices, but a gradient step turns them faster.
    """
    from urnn.unitary import Reflection

    for cell in _cells(module):
        glorot_(cell.input_weight, cell.input_size, 2 * cell.hidden_size)
        _common(cell)
        if cell.bias is not None:
            nn.init.uniform_(cell.bias, -0.01, 0.01)
        for factor in cell.unitary.modules():
            if isinstance(factor, Reflection):
                reflection_(factor.vector, math.sqrt(6 / (2 + 2 * factor.size)))
    _readout(module)


INITIALISERS: "dict[str, Initialiser]" = {"paper": paper, "theano": theano}


def _common(cell: "UnitaryRNNCell") -> None:
    if cell.bias is not None:
        nn.init.zeros_(cell.bias)
    if cell.initial_state is not None:
        initial_state_(cell.initial_state)


def _readout(module: nn.Module) -> None:
    weight, bias = getattr(module, "readout_weight", None), getattr(module, "readout_bias", None)
    if weight is not None:
        glorot_(weight, weight.shape[1], weight.shape[0])
    if bias is not None:
        nn.init.zeros_(bias)


def _cells(module: nn.Module) -> "list[UnitaryRNNCell]":
    from urnn.cell import UnitaryRNNCell

    return [cell for cell in module.modules() if isinstance(cell, UnitaryRNNCell)]
