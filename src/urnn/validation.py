"""Sentences for what a user got wrong: they quote what was given and say what would be right."""

import operator
from collections.abc import Collection
from difflib import get_close_matches
from numbers import Real
from typing import Any

import torch
from torch import Tensor


def positive_integer(name: str, value: Any) -> int:
    """Return value if it is an integer ≥ 1, else raise and say so."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be a positive integer; got {value!r}.")
    if number < 1:
        raise ValueError(f"{name} must be a positive integer; got {number}.")
    return number


def known(what: str, name: object, valid: Collection[str], otherwise: str = "") -> str:
    """Return name if it is one of the valid ones, else raise, naming them and the nearest."""
    if isinstance(name, str) and name in valid:
        return name
    choices = ", ".join(repr(choice) for choice in valid) + otherwise
    if not isinstance(name, str):
        raise TypeError(f"{what} must be one of {choices}; got {name!r}.")
    longer = [choice for choice in valid if name and choice.startswith(name)]
    near = longer or get_close_matches(name, valid, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {what} {name!r}.{hint} Valid: {choices}.")


def checked_leak(leak: float) -> float:
    """Return α if it is in [0, 1), else raise."""
    if isinstance(leak, bool) or not isinstance(leak, Real):
        raise TypeError(f"leak must be a number in [0, 1); got {leak!r}.")
    if not 0 <= leak < 1:
        raise ValueError(f"leak must be in [0, 1); got {leak}.")
    return float(leak)


def checked_probability(name: str, value: float) -> float:
    """Return value if it is in [0, 1], else raise."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a probability in [0, 1]; got {value!r}.")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be a probability in [0, 1]; got {value}.")
    return float(value)


def is_tokens(x: Tensor) -> bool:
    """Return whether x is integer."""
    return not (x.is_floating_point() or x.is_complex())


def check_complex(name: str, z: object, size: int | None = None) -> None:
    """Raise where z is no complex tensor, or not `size` wide."""
    if not isinstance(z, Tensor) or not z.is_complex():
        given = z.dtype if isinstance(z, Tensor) else type(z).__name__
        raise TypeError(f"{name} acts on complex tensors; got {given}. Use z.to(torch.complex64).")
    if size is not None and (z.dim() == 0 or z.shape[-1] != size):
        raise ValueError(
            f"{name} acts on a last dimension of {size}; got a tensor of shape {tuple(z.shape)}."
        )


def check_matrix(name: str, tensor: object, shape: str) -> None:
    """Raise where a tensor is no matrix."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor of shape {shape}; got {type(tensor).__name__}.")
    if tensor.dim() != 2:
        raise ValueError(f"{name} must have the shape {shape}; got {tuple(tensor.shape)}.")


def check_tensor(
    name: str,
    tensor: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Raise where a tensor has another dtype, shape or device than it must."""
    if tensor is None:
        return
    if not isinstance(tensor, Tensor):
        pair = " A uRNN has one complex state, not a pair (h, c)." if name == "h_0" else ""
        raise TypeError(f"{name} must be one tensor; got {type(tensor).__name__}.{pair}")
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype} here; got {tensor.dtype}.")
    if tensor.shape != shape:
        raise ValueError(f"{name} must have the shape {shape}; got {tuple(tensor.shape)}.")
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device}, like x; got {tensor.device}.")


def checked_input(
    x: Tensor,
    input_weight: Tensor | None,
    width: int | None = None,
    layout: tuple[str, ...] = ("L", "N"),
) -> Tensor:
    """Return x as the engines take it (half promoted, tokens int64), or raise and say why not.

    Args:
        x: what was given.
        input_weight: (2n, H), or None for an x that is u itself.
        width: n, the width of such a u.
        layout: the names of x's dimensions before the features; N may be missing.
    """
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        given = x.layout if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a dense tensor; got {given}.")
    tokens = is_tokens(x)
    if input_weight is None:
        if x.dtype not in (torch.complex64, torch.complex128):
            raise TypeError(f"without input_weight, x is u itself and complex; got {x.dtype}.")
    else:
        width = input_weight.shape[-1]
        x = _matched(x, input_weight)
    axes = layout if tokens else (*layout, str(width))
    if x.dim() not in (len(axes) - 1, len(axes)):
        what = "integer tokens must have" if tokens else "x must have"
        hint = " For features instead of tokens use x.float()." if tokens else ""
        raise ValueError(
            f"{what} the shape ({', '.join(axes)}), or without N; got {tuple(x.shape)}.{hint}"
        )
    if not tokens and x.shape[-1] != width:
        raise ValueError(
            f"x must have {width} features on its last dimension; got {x.shape[-1]} "
            f"(shape {tuple(x.shape)})."
        )
    if "L" in layout and x.shape[layout.index("L") if x.dim() == len(axes) else 0] == 0:
        raise ValueError(f"the sequence is empty (L = 0): x has the shape {tuple(x.shape)}.")
    return x


def _matched(x: Tensor, weight: Tensor) -> Tensor:
    """Return x in the dtype of the weights where that is lossless (tokens in int64), or raise."""
    if weight.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"the weights must be float32 or float64; got {weight.dtype}. For half precision use "
            "torch.autocast, which leaves the recurrence in float32."
        )
    if x.dtype == torch.bool or x.is_complex():
        raise TypeError(f"x must be real features or integer tokens; got {x.dtype}.")
    if x.device != weight.device:
        raise ValueError(f"x is on {x.device}, but the weights are on {weight.device}.")
    if is_tokens(x):
        return x.long()
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.to(weight.dtype)
    if x.dtype != weight.dtype:
        raise TypeError(
            f"x and the weights must have one dtype; got {x.dtype} and {weight.dtype}. "
            f"Use x.to({weight.dtype})."
        )
    return x


def checked_lengths(lengths: Tensor, x: Tensor) -> Tensor:
    """Return lengths as int64 on x's device, or raise."""
    steps, batch = x.shape[:2]
    if not isinstance(lengths, Tensor | list | tuple):
        raise TypeError(f"lengths must be a tensor of {batch} integers; got {lengths!r}.")
    lengths = torch.as_tensor(lengths, device=x.device)
    lengths = lengths if lengths.numel() else lengths.long()
    if not is_tokens(lengths) or lengths.dtype == torch.bool or lengths.shape != (batch,):
        raise ValueError(
            f"lengths must be {batch} integers, one per sequence; got {lengths.dtype} of shape "
            f"{tuple(lengths.shape)}."
        )
    batched = torch._C._functorch.is_functorch_wrapped_tensor(lengths)  # its values are hidden
    if not torch.compiler.is_compiling() and not batched and batch:
        low, high = (int(bound) for bound in lengths.aminmax())
        if low < 1 or high > steps:
            raise ValueError(f"lengths must be 1 … {steps} (L); got {low if low < 1 else high}.")
    return lengths.long()
