"""R = I − 2vv*/‖v‖²."""

import torch
from torch import Tensor, nn

from urnn import init
from urnn.unitary.base import Prepared, Unitary


class Reflection(Unitary):
    """R = I − 2vv*/‖v‖², the reflection in the complex vector v.

    R is its own adjoint and inverse. It does not depend on the scale of v; v = 0 defines
    no reflection, and every entry of the result is then NaN rather than silently z.

    Args:
        size: n.

    Attributes:
        vector: v, shape (2, n), rows Re v and Im v, drawn from U[−1, 1].

    Example:
        >>> R = urnn.unitary.Reflection(5)
        >>> z = torch.randn(5, dtype=torch.complex64)
        >>> torch.allclose(R(R(z)), z, atol=1e-6)
        True
    """

    vector: Tensor

    def __init__(
        self,
        size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(size)
        self.vector = nn.Parameter(torch.empty(2, self.size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the coordinates of v from U[−1, 1]."""
        init.reflection_(self.vector)

    def prepare(self) -> Prepared:
        return reflection(unit_vector(self.vector))


def reflection(v: Tensor) -> Prepared:
    """Return z ↦ z − 2v v*z for a unit vector v."""
    v_conj = v.conj()

    def reflect(z: Tensor) -> Tensor:
        return z - 2 * (z * v_conj).sum(-1, keepdim=True) * v

    return Prepared(reflect, reflect)


def unit_vector(vector: Tensor) -> Tensor:
    """Return v/‖v‖ as a complex (…, n) tensor from (…, 2, n) real coordinates.

    The coordinates are first divided by the largest of them, a constant as far as gradients
    go (the result does not depend on scale), so that no square over- or underflows.
    """
    scaled = vector / vector.detach().abs().amax((-2, -1), keepdim=True)
    unit = scaled / scaled.square().sum((-2, -1), keepdim=True).sqrt()
    return torch.complex(unit[..., 0, :], unit[..., 1, :])
