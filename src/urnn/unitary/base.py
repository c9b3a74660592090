"""The protocol of a unitary matrix, its adjoint, and products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple, overload

import torch
from torch import Tensor, nn

from urnn.validation import check_complex, positive_integer


class Prepared(NamedTuple):
    """A matrix ready for use: z ↦ Wz and z ↦ W*z on the last dimension of a complex tensor."""

    apply: Callable[[Tensor], Tensor]
    adjoint: Callable[[Tensor], Tensor]


class Unitary(nn.Module, ABC):
    """A unitary matrix W ∈ Cⁿˣⁿ, known by what it does to vectors.

    A subclass implements `prepare`: it computes once what a whole sequence shares
    (e^{iω}, v/‖v‖) and returns the two functions W and W*. Everything else follows.
    A subclass that is a product of the built-in factors may say so in `lower`, and is
    then run by the fast engines in O(n log n); any other is run as a dense matrix there.

    Args:
        size: n, the length of the vectors it acts on.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = positive_integer("size", size)

    @abstractmethod
    def prepare(self) -> Prepared:
        """Compute what is shared by all applications, once, and return W and W*."""

    def lower(self) -> Unitary:
        """Return the same matrix in terms of the built-in factors, where that is possible."""
        return self

    def forward(self, z: Tensor) -> Tensor:
        """Return Wz for complex z of shape (…, n)."""
        check_complex(f"{type(self).__name__}({self.size})", z, self.size)
        return self.prepare().apply(z)

    @property
    def H(self) -> Unitary:
        """The adjoint W* = W⁻¹, which shares this matrix's parameters."""
        return Adjoint(self)

    def __matmul__(self, other: Unitary) -> Compose:
        """Return the product in mathematical order: (A @ B)(z) = A(B(z))."""
        if isinstance(other, Tensor):
            raise TypeError("@ composes unitary matrices; to apply W to a tensor z, call W(z).")
        if not isinstance(other, Unitary):
            return NotImplemented
        return Compose(self, other)

    def as_matrix(
        self, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Tensor:
        """Return W as a dense complex (n, n) tensor, differentiable in the parameters.

        It is computed in the precision of W's own tensors, on their device, and then given the
        dtype asked for; a W without tensors (F) is computed in that dtype, on that device.
        """
        own, device = self.dtype_and_device(dtype, device)
        identity = torch.eye(self.size, dtype=own, device=device)
        matrix = self.prepare().apply(identity).mT  # row j of apply(I) is W e_j, column j of W
        return matrix if dtype is None else matrix.to(dtype)

    def dtype_and_device(
        self, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> tuple[torch.dtype, torch.device | None]:
        """Return the complex dtype and the device of W's tensors, or those given if it has none."""
        tensors = [*self.parameters(), *self.buffers()]
        floating = [t.dtype for t in tensors if t.is_floating_point() or t.is_complex()]
        if floating or dtype is None:
            dtype = reduce(torch.promote_types, floating or [torch.get_default_dtype()])
            dtype = torch.promote_types(dtype, torch.complex64)
        return dtype, tensors[0].device if tensors else device

    def extra_repr(self) -> str:
        return str(self.size)


class Adjoint(Unitary):
    """W* of a given W: the same preparation with its two functions swapped."""

    def __init__(self, of: Unitary) -> None:
        if not isinstance(of, Unitary):
            raise TypeError(f"Adjoint is the adjoint of a Unitary; got {of!r}.")
        super().__init__(of.size)
        self.of = of

    def prepare(self) -> Prepared:
        prepared = self.of.prepare()
        return Prepared(prepared.adjoint, prepared.apply)

    def lower(self) -> Unitary:
        lowered = self.of.lower()
        return self if lowered is self.of else lowered.H

    @property
    def H(self) -> Unitary:
        return self.of

    def __repr__(self) -> str:
        return f"{self.of!r}.H"


class Factors(nn.Module, Sequence[Unitary]):
    """The factors of a product, left to right as written.

    A factor that stands at several places, as itself or as its adjoint, is registered once,
    under its first place: one set of parameters, one entry in the state_dict.
    """

    def __init__(self, factors: Sequence[Unitary]) -> None:
        super().__init__()
        first: dict[int, str] = {}
        self._places: list[tuple[str, bool]] = []
        for place, factor in enumerate(factors):
            adjoint = isinstance(factor, Adjoint)
            base = factor.of if isinstance(factor, Adjoint) else factor
            name = first.setdefault(id(base), str(place))
            if name == str(place):
                self.add_module(name, base)
            self._places.append((name, adjoint))

    @overload
    def __getitem__(self, place: int) -> Unitary: ...
    @overload
    def __getitem__(self, place: slice) -> list[Unitary]: ...
    def __getitem__(self, place: int | slice) -> Unitary | list[Unitary]:
        if isinstance(place, slice):
            return list(self)[place]
        base, adjoint = self.at(place)
        return base.H if adjoint else base

    def at(self, place: int) -> tuple[Unitary, bool]:
        """Return the matrix at a place, and whether it is its adjoint that stands there."""
        name, adjoint = self._places[place]
        base = self._modules[name]
        assert isinstance(base, Unitary)
        return base, adjoint

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Unitary]:
        return (self[place] for place in range(len(self)))


class Compose(Unitary):
    """A product of unitary matrices, listed left to right as written.

    Products within the product are taken apart, so `factors` lists no `Compose`.
    """

    factors: Factors

    def __init__(self, *factors: Unitary) -> None:
        if not factors:
            raise ValueError("a product needs at least one factor; got none.")
        for factor in factors:
            if not isinstance(factor, Unitary):
                raise TypeError(f"a product is made of Unitary factors; got {factor!r}.")
        sizes = [factor.size for factor in factors]
        if len(set(sizes)) > 1:
            raise ValueError(f"the factors of a product need one size; got sizes {sizes}.")
        super().__init__(sizes[0])
        self.factors = Factors([part for f in factors for part in _parts(f)])

    def prepare(self) -> Prepared:
        prepared: dict[int, Prepared] = {}  # a factor that stands twice is prepared once
        apply: list[Callable[[Tensor], Tensor]] = []
        adjoint: list[Callable[[Tensor], Tensor]] = []
        for place in range(len(self.factors)):
            base, swapped = self.factors.at(place)
            if id(base) not in prepared:
                prepared[id(base)] = base.prepare()
            p = prepared[id(base)]
            apply.append(p.adjoint if swapped else p.apply)
            adjoint.append(p.apply if swapped else p.adjoint)
        apply.reverse()  # the rightmost factor acts first
        return Prepared(_chain(apply), _chain(adjoint))

    def lower(self) -> Unitary:
        factors = list(self.factors)
        lowered = [factor.lower() for factor in factors]
        same = all(a is b for a, b in zip(lowered, factors, strict=True))
        return self if same else Compose(*lowered)

    @property
    def H(self) -> Unitary:
        if type(self) is not Compose:  # a user's own may have another prepare
            return Adjoint(self)
        return Compose(*(factor.H for factor in reversed(self.factors)))

    def __repr__(self) -> str:
        return " @ ".join(repr(factor) for factor in self.factors)


def _parts(unitary: Unitary) -> list[Unitary]:
    """Take apart the products within a product; a user's subclass of Compose stays whole."""
    return list(unitary.factors) if type(unitary) is Compose else [unitary]


def _chain(functions: list[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    def chained(z: Tensor) -> Tensor:
        for function in functions:
            z = function(z)
        return z

    return chained
