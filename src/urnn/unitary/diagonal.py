"""D = diag(e^{iω})."""

import torch
from torch import Tensor, nn

from urnn import init
from urnn.unitary.base import Prepared, Unitary


class Diagonal(Unitary):
    """D = diag(e^{iω₁}, …, e^{iωₙ}), with the phases ω ∈ Rⁿ as parameters.

    Args:
        size: n.

    Attributes:
        phase: ω, shape (n,), drawn from U[−π, π].

    Example:
        >>> D = urnn.unitary.Diagonal(4)
        >>> z = torch.randn(3, 4, dtype=torch.complex64)
        >>> torch.allclose(D(z).abs(), z.abs())
        True
    """

    phase: Tensor

    def __init__(
        self,
        size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(size)
        self.phase = nn.Parameter(torch.empty(self.size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw ω from U[−π, π]: the diagonal is then uniform on the unit circle."""
        init.phase_(self.phase)

    def prepare(self) -> Prepared:
        return rotation(torch.complex(self.phase.cos(), self.phase.sin()))


def rotation(d: Tensor) -> Prepared:
    """Return z ↦ d ⊙ z for numbers d of modulus 1."""
    d_conj = d.conj()
    return Prepared(lambda z: d * z, lambda z: d_conj * z)
