"""Π, a fixed permutation."""

import torch
from torch import Tensor

from urnn.unitary.base import Prepared, Unitary


class Permutation(Unitary):
    """Π: (Πz)_j = z[index[j]], a fixed random permutation without parameters.

    Args:
        size: n.
        index: the permutation itself, in place of a random one.

    Attributes:
        index: int64 buffer of shape (n,), part of the state_dict.

    Example:
        >>> P = urnn.unitary.Permutation(3, index=[2, 0, 1])
        >>> P(torch.tensor([10, 20, 30], dtype=torch.complex64)).real
        tensor([30., 10., 20.])
    """

    index: Tensor

    def __init__(
        self,
        size: int,
        index: Tensor | list[int] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(size)
        if index is None:
            self.register_buffer("index", torch.empty(self.size, dtype=torch.int64, device=device))
            self.reset_parameters()
            return
        if not isinstance(index, Tensor | list | tuple):
            raise TypeError(f"index must be a tensor or list of integers; got {index!r}.")
        given = torch.as_tensor(index, device=device)
        integers = given.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
        if given.shape != (self.size,) or not integers:
            raise ValueError(
                f"index needs {self.size} integers; got {given.dtype} of shape "
                f"{tuple(given.shape)}."
            )
        given = given.to(torch.int64, copy=True)
        once = torch.arange(self.size, device=given.device)
        if not given.is_meta and not torch.equal(given.sort()[0], once):
            raise ValueError(
                f"index must hold each of 0 … {self.size - 1} once; got {given.tolist()[:16]}."
            )
        self.register_buffer("index", given)

    def reset_parameters(self) -> None:
        """Draw another random permutation."""
        with torch.no_grad():
            self.index.copy_(torch.randperm(self.size, device=self.index.device))

    def prepare(self) -> Prepared:
        return permutation(self.index)


def permutation(index: Tensor) -> Prepared:
    """Return z ↦ z[…, index]."""
    inverse = index.argsort()
    return Prepared(lambda z: permute(z, index), lambda z: permute(z, inverse))


def permute(z: Tensor, index: Tensor) -> Tensor:
    """Return z[…, index]: a gather, whose backward pass does not sort as that of indexing does."""
    return z.gather(-1, index.expand(z.shape))
