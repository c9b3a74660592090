"""The paper's naive W = V D V*, and Lemma 1's real orthogonal matrix."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from urnn import init
from urnn.unitary.base import Prepared, Unitary


class Spectral(Unitary):
    """W = V D V* with a fixed random unitary V and learned phases, D = diag(e^{iω}).

    The paper's first idea (equation 5): O(n²) to store and to apply, a yardstick for the
    cheap products. With `real=True` it is Lemma 1: the columns of V come in conjugate pairs
    v_k = conj(v_j) and the phases are tied, ω_k = −ω_j, so that W is real and orthogonal.
    An odd n leaves one column over, which is real and has the eigenvalue 1.

    Args:
        size: n.
        real: conjugate pairs, as in Lemma 1.

    Attributes:
        phase: ω, shape (n,), or (⌊n/2⌋,) with `real=True`, drawn from U[−π, π].
        basis: V, a buffer of shape (2, n, n), Re V and Im V.

    Example:
        >>> W = urnn.unitary.Spectral(6, real=True).as_matrix()
        >>> bool(W.imag.abs().max() < 1e-6)
        True
    """

    phase: Tensor
    basis: Tensor

    def __init__(
        self,
        size: int,
        real: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(size)
        self.real = real
        phases = self.size // 2 if real else self.size
        self.phase = nn.Parameter(torch.empty(phases, device=device, dtype=dtype))
        basis = torch.empty(2, self.size, self.size, device=device, dtype=dtype)
        self.register_buffer("basis", basis)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw V, uniformly among the unitary (orthogonal) matrices, and ω from U[−π, π]."""
        init.phase_(self.phase)
        with torch.no_grad():
            if self.real:
                V = _conjugate_pairs(_haar(torch.randn_like(self.basis[0])))
            else:
                V = _haar(torch.complex(*torch.randn_like(self.basis)))
            self.basis.copy_(torch.stack([V.real, V.imag]))

    def _apply(self, function: Callable[..., Tensor], recurse: bool = True) -> "Spectral":
        """Convert as any module; a V that comes to float64 is made unitary to float64.

        V(3 − V*V)/2 squares the distance of V from the unitary matrices, 1e-6 at first.
        """
        before = self.basis.dtype
        nn.Module._apply(self, function, recurse)
        if self.basis.dtype == torch.float64 != before:
            V = torch.complex(self.basis[0], self.basis[1])
            for _ in range(2):
                V = 1.5 * V - 0.5 * V @ (V.mH @ V)
            self.basis = torch.stack([V.real, V.imag])
        return self

    def prepare(self) -> Prepared:
        V = torch.complex(self.basis[0], self.basis[1])
        phase = self.phase
        if self.real:
            rest = phase.new_zeros(self.size % 2)
            phase = torch.cat([phase, -phase, rest])
        d = torch.complex(phase.cos(), phase.sin())
        to_spectrum, from_spectrum = V.conj(), V.mT  # row vectors: z ↦ V*z is z @ conj(V)
        return Prepared(
            lambda z: (d * (z @ to_spectrum)) @ from_spectrum,
            lambda z: (d.conj() * (z @ to_spectrum)) @ from_spectrum,
        )

    def extra_repr(self) -> str:
        return f"{self.size}, real=True" if self.real else str(self.size)


def _haar(gaussian: Tensor) -> Tensor:
    """Return the Q of a Gaussian matrix, its columns' signs chosen so that Q is uniform."""
    Q, R = torch.linalg.qr(gaussian)
    diagonal = R.diagonal()
    uniform: Tensor = Q * torch.where(diagonal == 0, 1, diagonal / diagonal.abs())
    return uniform


def _conjugate_pairs(Q: Tensor) -> Tensor:
    """Return V = [(a + ib)/√2, (a − ib)/√2, c] from the columns [a, b, c] of a real Q."""
    half = Q.shape[0] // 2
    a, b, c = Q[:, :half], Q[:, half : 2 * half], Q[:, 2 * half :]
    pair = torch.complex(a, b) / 2**0.5
    return torch.cat([pair, pair.conj(), torch.complex(c, torch.zeros_like(c))], dim=1)
