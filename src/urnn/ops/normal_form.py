"""W as the engines run it: the structured form in O(n log n), else a dense matrix.

A product of phases and reflections around one pair F⁻¹ … F, with permutations only between
the two, equals up to a diagonal change of gauge W′ = D W D*

    W′h = d ⊙ F⁻¹(e ⊙ (Fh)[π]) + Q A*h          d, e ∈ Cⁿ;  Q, A ∈ Cⁿˣʳ

with r the number of reflections. With y = Xh and X all that stands to the right of a
reflection, Ry = y − 2v v*y: each reflection adds one rank to the product without reflections
(the backbone). Its column of Q is −2v carried through everything on its left, its column of A
is v carried back through the backbone on its right. The phases right of F are the gauge: they
commute with σ, so they are folded into u, h₀ and the readout instead (`ops/README.md`).

No gradient flows through the gauge: a change of gauge changes nothing, so its gradient is a
sum of large terms that cancel, which cost float32 a digit. The phases right of F get theirs as
what they are instead, a factor e^{i·turn} to the right of W′ with turn = 0.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from urnn.unitary import (
    Adjoint,
    Compose,
    Diagonal,
    Fourier,
    Permutation,
    Prepared,
    Reflection,
    Unitary,
)
from urnn.unitary.diagonal import rotation
from urnn.unitary.fourier import fft, ifft
from urnn.unitary.permutation import permutation, permute
from urnn.unitary.reflection import reflection, unit_vector

SMALL = 16


class Structured(NamedTuple):
    """W′ = D W D* with D = diag(gauge).

    gauge, d, e: complex (n,); permutation: π, (n,) int64; Q, A: complex (n, r); turn: real
    (n,), zeros, there for its gradient.
    """

    gauge: Tensor
    d: Tensor
    e: Tensor
    permutation: Tensor
    Q: Tensor
    A: Tensor
    turn: Tensor


class Dense(NamedTuple):
    """W itself, (n, n)."""

    matrix: Tensor


def normal_form(
    unitary: Unitary, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Structured | Dense:
    """Return the structured form of W where it has one, else its dense matrix.

    dtype (complex) and device are those of W's own tensors unless given. A W of up to
    `SMALL` units is dense too: one small product is faster than two transforms, and with
    about as many reflections as units the terms of the structured form nearly cancel.
    """
    factors = structured_factors(unitary)
    if isinstance(factors, str):
        return Dense(unitary.as_matrix(dtype, device))
    own, device = unitary.dtype_and_device(dtype, device)
    form = product if unitary.size <= SMALL else structured
    return form(factors, own if dtype is None else dtype, device)


def describe(unitary: Unitary) -> str:
    """Say in a sentence in which form the engines run W, and what a step costs."""
    n = unitary.size
    factors = structured_factors(unitary)
    if isinstance(factors, str):
        return (
            f"W runs as a dense {n} × {n} matrix, about {8 * n * n} floating-point operations a "
            f"step and sequence, where the structured form has O(n log n): {factors}."
        )
    if n <= SMALL:
        return f"W runs as a dense {n} × {n} matrix, which is fastest up to {SMALL} units."
    reflections = sum(type(factor) is Reflection for factor, _ in factors)
    operations = round(2 * 5 * n * math.log2(n)) + (14 + 16 * reflections) * n
    return (
        f"W is structured: 2 Fourier transforms and {reflections} reflection"
        f"{'s' * (reflections != 1)}, about {operations} floating-point operations a step and "
        "sequence."
    )


def structured_factors(unitary: Unitary) -> list[tuple[Unitary, bool]] | str:
    """Return W's factors and whether each stands as its adjoint, or a sentence why it has none.

    Classes are matched exactly: a subclass of `Diagonal` may be anything.
    """
    lowered = unitary.lower()
    if not isinstance(lowered, Unitary) or lowered.size != unitary.size:
        raise TypeError(
            f"lower() must return the same matrix of size {unitary.size} as a Unitary; that of "
            f"{type(unitary).__name__} returned {lowered!r}."
        )
    product = list(lowered.factors) if type(lowered) is Compose else [lowered]
    factors = [(f.of, True) if type(f) is Adjoint else (f, False) for f in product]
    for factor, _ in factors:
        if type(factor) not in (Diagonal, Reflection, Permutation, Fourier):
            return (
                f"{type(factor).__name__} is none of the factors Diagonal, Reflection, Permutation "
                "and Fourier, and its lower() does not say which product of them it is"
            )
    kinds = [type(factor) for factor, _ in factors]
    pair = [place for place, kind in enumerate(kinds) if kind is Fourier]
    if len(pair) not in (0, 2):
        return f"the product has {len(pair)} Fourier factors, where one pair F⁻¹ … F can be run"
    between = range(pair[0], pair[1]) if pair else range(0)
    outside = [place for place, kind in enumerate(kinds) if place not in between]
    outside = [place for place in outside if kinds[place] is Permutation]
    if outside:
        return f"factor {outside[0]} is a permutation outside of the pair F⁻¹ … F"
    return factors


def structured(
    factors: list[tuple[Unitary, bool]], dtype: torch.dtype, device: torch.device | None
) -> Structured:
    """Return the structured form of a product; computed in float64, cast at the end."""
    parts = [_part(factor, adjoint) for factor, adjoint in factors]
    pair = [place for place, part in enumerate(parts) if part.kind is Fourier]
    first, second = pair or (len(parts), len(parts))  # without F, d = e = 1 stand for the pair
    left, middle, right = parts[:first], parts[first + 1 : second], parts[second + 1 :]
    n = factors[0][0].size
    if pair:  # F = F⁻¹J = JF⁻¹ with (Jz)_j = z[−j]: a pair of another kind is F⁻¹ … F too
        mirror = (-torch.arange(n, device=device)) % n
        if not factors[first][1]:
            middle.insert(0, _permutation(mirror))
        if factors[second][1]:
            middle.append(_permutation(mirror))

    one = torch.ones(n, dtype=torch.complex128, device=device)
    phases = _phases(right, one)
    gauge = phases.detach()
    turn = (gauge.conj() * phases).imag
    d = gauge * _phases(left, one)
    e, index = one, torch.arange(n, device=one.device)
    for part in reversed(middle):  # e ⊙ y[π], from the right
        if part.kind is Diagonal:
            e = part.value * e
        elif part.kind is Permutation:
            e, index = permute(e, part.value), permute(index, part.value)

    left_columns, right_columns = [], []
    for place in reversed(range(len(parts))):
        if parts[place].kind is Reflection:
            q = a = parts[place].value
            for part in reversed(parts[:place]):
                q = part.prepared.apply(q)
            for part in parts[place + 1 :]:
                a = a if part.kind is Reflection else part.prepared.adjoint(a)
            left_columns.append(-2 * gauge * q)
            right_columns.append(phases * a)
    columns = [
        torch.stack(c, dim=-1) if c else one.new_zeros(n, 0) for c in (left_columns, right_columns)
    ]
    gauge, d, e, Q, A = (t.to(dtype) for t in (gauge, d, e, *columns))
    return Structured(gauge, d, e, index, Q, A, turn.to(gauge.real.dtype))


def product(
    factors: list[tuple[Unitary, bool]], dtype: torch.dtype, device: torch.device | None
) -> Dense:
    """Return the dense matrix of a product; computed in float64, cast at the end."""
    rows = torch.eye(factors[0][0].size, dtype=torch.complex128, device=device)
    for factor, adjoint in reversed(factors):
        rows = _part(factor, adjoint).prepared.apply(rows)
    return Dense(rows.mT.to(dtype))


class _Part(NamedTuple):
    """A factor in float64: its class, e^{iω} or v/‖v‖ or the index, and its two functions."""

    kind: type[Unitary]
    value: Tensor
    prepared: Prepared


def _part(factor: Unitary, adjoint: bool) -> _Part:
    if isinstance(factor, Diagonal):
        phase = factor.phase.double()
        d = torch.complex(phase.cos(), -phase.sin() if adjoint else phase.sin())
        return _Part(Diagonal, d, rotation(d))
    if isinstance(factor, Reflection):
        v = unit_vector(factor.vector.double())
        return _Part(Reflection, v, reflection(v))
    if isinstance(factor, Permutation):
        return _permutation(factor.index.argsort() if adjoint else factor.index)
    return _Part(Fourier, torch.empty(0), Prepared(ifft, fft) if adjoint else Prepared(fft, ifft))


def _permutation(index: Tensor) -> _Part:
    return _Part(Permutation, index, permutation(index))


def _phases(parts: list[_Part], one: Tensor) -> Tensor:
    """Return the product of the phases among parts."""
    product = one
    for part in parts:
        product = product * part.value if part.kind is Diagonal else product
    return product
