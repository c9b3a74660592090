"""F, the orthonormal discrete Fourier transform."""

import torch
from torch import Tensor

from urnn.unitary.base import Prepared, Unitary


class Fourier(Unitary):
    """F_{jk} = e^{−2πi·jk/n}/√n, unitary, in O(n log n) for every n; `Fourier(n).H` is F⁻¹.

    Args:
        size: n.

    Example:
        >>> F = urnn.unitary.Fourier(4)
        >>> F(torch.ones(4, dtype=torch.complex64)).real
        tensor([2., 0., 0., 0.])
    """

    def prepare(self) -> Prepared:
        return Prepared(fft, ifft)


def fft(z: Tensor) -> Tensor:
    """Return Fz along the last dimension (an empty batch too, which torch.fft refuses)."""
    return torch.fft.fft(z, norm="ortho") if z.numel() else z


def ifft(z: Tensor) -> Tensor:
    """Return F⁻¹z along the last dimension."""
    return torch.fft.ifft(z, norm="ortho") if z.numel() else z
