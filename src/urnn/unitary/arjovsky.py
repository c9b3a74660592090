"""The paper's W."""

import torch

from urnn.unitary.base import Compose
from urnn.unitary.diagonal import Diagonal
from urnn.unitary.fourier import Fourier
from urnn.unitary.permutation import Permutation
from urnn.unitary.reflection import Reflection


def arjovsky(
    size: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Compose:
    """Return W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁ of Arjovsky, Shah and Bengio (2016, equation 6).

    It has 7n real parameters (3n phases and two reflection vectors of 2n coordinates) and
    costs O(n log n) to apply.

    Example:
        >>> W = urnn.unitary.arjovsky(7)
        >>> [type(factor).__name__ for factor in W.factors]  # doctest: +NORMALIZE_WHITESPACE
        ['Diagonal', 'Reflection', 'Adjoint', 'Diagonal', 'Permutation', 'Reflection',
         'Fourier', 'Diagonal']
        >>> sum(p.numel() for p in W.parameters())
        49
    """
    D1, D2, D3 = (Diagonal(size, device, dtype) for _ in range(3))
    R1, R2 = (Reflection(size, device, dtype) for _ in range(2))
    P = Permutation(size, device=device)
    F = Fourier(size)
    return D3 @ R2 @ F.H @ D2 @ P @ R1 @ F @ D1
