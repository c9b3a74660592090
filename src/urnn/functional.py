"""The recurrence and the nonlinearity as functions: they validate, then dispatch to an engine."""

import torch
from torch import Tensor

from urnn.nonlinearity import Nonlinearity, prepare_mod_relu, radial
from urnn.ops import dispatch
from urnn.ops.recurrence import Answer, Network, Request
from urnn.precision import complex_dtype, full_precision
from urnn.unitary import Unitary
from urnn.validation import (
    check_complex,
    check_matrix,
    check_tensor,
    checked_input,
    checked_leak,
    checked_lengths,
    is_tokens,
    known,
)

__all__ = ["mod_relu", "unitary_scan"]


def mod_relu(z: Tensor, bias: Tensor, leak: float = 0.0) -> Tensor:
    """Apply σ(z) = ρ(|z|)·z/|z| elementwise to a complex tensor.

    ρ(r) = max(r + b, αr) for b ≤ 0 and min(r + b, r/α) for b > 0, with α = `leak`. α = 0 is
    the paper's modReLU (equation 8); α > 0 is invertible, and its inverse is itself with −b.

    Args:
        z: complex, (…, n).
        bias: b, real, (n,) or any shape that broadcasts against z.
        leak: α ∈ [0, 1).

    Example:
        >>> z = torch.tensor([3 + 4j, 0.3 + 0.4j, 0j])
        >>> urnn.functional.mod_relu(z, torch.tensor(-1.0)).abs()
        tensor([4., 0., 0.])
    """
    check_complex("mod_relu", z)
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        given = bias.dtype if isinstance(bias, Tensor) else repr(bias)
        raise TypeError(f"the bias of mod_relu is a real tensor; got {given}.")
    return prepare_mod_relu(bias, checked_leak(leak))(z)


def unitary_scan(
    x: Tensor,
    h_0: Tensor | None,
    unitary: Unitary,
    input_weight: Tensor | None,
    bias: Tensor | None,
    *,
    leak: float = 0.0,
    nonlinearity: Nonlinearity | None = None,
    readout: tuple[Tensor, Tensor | None] | None = None,
    outputs: str = "all",
    lengths: Tensor | None = None,
    reverse: bool = False,
    memory: str = "full",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run h_t = σ(W h_{t−1} + V x_t), o_t = U [Re h_t; Im h_t] + b_o over a sequence.

    Args:
        x: the input; real (L, N, H), integer tokens (L, N) for one-hot vectors of H categories,
            or, without `input_weight`, u_t itself, complex (L, N, n).
        h_0: the state before the first step, complex (N, n), or (n,) for all sequences alike;
            None for zeros.
        unitary: W.
        input_weight: [Re V; Im V], (2n, H), or None.
        bias: b of the modReLU, (n,), or None for a linear recurrence.
        leak: α of the modReLU (see `mod_relu`).
        nonlinearity: any σ: z ↦ h, in place of (bias, leak).
        readout: (U, b_o) of shapes (k, 2n) and (k,); b_o may be None.
        outputs: "all" steps, or each sequence's "last".
        lengths: (N,) integers, where a sequence ends before L; outputs beyond are 0, and the
            padding is never read.
        reverse: read each sequence from its end.
        memory: "full", or "constant": keep √L states for the backward pass, recompute the rest.
        backend: "auto", or the name of an engine (see `urnn.explain`).

    Returns:
        output: real, (L, N, k), or (L, N, 2n) = [Re h; Im h] without readout; for
            outputs="last" (N, k) or (N, 2n).
        h_n: each sequence's final state, complex (N, n).

    Example:
        >>> W = urnn.unitary.arjovsky(8)
        >>> V, b = torch.randn(16, 3), torch.zeros(8)
        >>> output, h_n = urnn.functional.unitary_scan(torch.randn(5, 2, 3), None, W, V, b)
        >>> output.shape, h_n.shape
        (torch.Size([5, 2, 16]), torch.Size([2, 8]))
    """
    check_options(outputs, memory, backend)
    _check_matrices(unitary, input_weight, readout, nonlinearity)
    n = unitary.size
    x = checked_input(x, input_weight, width=n)
    batched = x.dim() == (2 if is_tokens(x) else 3)
    if not batched:
        x = x.unsqueeze(1)
    N = x.shape[1]
    real = x.real.dtype if input_weight is None else input_weight.dtype
    _check_dtype(unitary, real)
    check_tensor("bias", bias, (n,), real, x.device)
    weight, offset = readout if readout is not None else (None, None)
    if weight is not None:
        check_tensor("the readout's U", weight, (weight.shape[0], 2 * n), real, x.device)
        check_tensor("the readout's b_o", offset, (weight.shape[0],), real, x.device)
    if h_0 is None:
        h_0 = torch.zeros(n, dtype=complex_dtype(real), device=x.device)
    shape = (n,) if isinstance(h_0, Tensor) and h_0.dim() == 1 else (N, n)
    check_tensor("h_0", h_0, shape, complex_dtype(real), x.device)
    leak = checked_leak(leak)
    if nonlinearity is not None:
        bias, leak, nonlinearity = radial(nonlinearity, n)

    if lengths is not None:
        lengths = checked_lengths(lengths, x)
        inside = torch.arange(x.shape[0], device=x.device)[:, None] < lengths
        x = x.where(inside if is_tokens(x) else inside[..., None], 0)
    network = Network(
        unitary=unitary,
        h_0=h_0.expand(N, n),
        input_weight=input_weight,
        bias=bias,
        leak=leak,
        nonlinearity=nonlinearity,
        readout=weight,
        reverse=reverse,
    )
    request = Request(x, (network,), lengths, outputs == "last", memory == "constant")
    ((output, h_n),) = run(request, backend)
    if offset is not None:
        output = output + offset
    if not batched:
        output, h_n = output.squeeze(0 if outputs == "last" else 1), h_n.squeeze(0)
    return output, h_n


def run(request: Request, backend: str) -> list[Answer]:
    """Dispatch a request that was validated."""
    with full_precision(request.x.device):
        return dispatch.run(request, backend)


def _check_matrices(
    unitary: object, input_weight: object, readout: object, nonlinearity: object
) -> None:
    """Raise for a W, V, (U, b_o) or σ of another kind or rank than it must have."""
    if not isinstance(unitary, Unitary):
        raise TypeError(f"unitary must be a urnn.unitary.Unitary; got {unitary!r}.")
    n = unitary.size
    if input_weight is not None:
        check_matrix("input_weight, [Re V; Im V],", input_weight, f"(2n, H) = ({2 * n}, H)")
        assert isinstance(input_weight, Tensor)
        if input_weight.shape[0] != 2 * n:
            raise ValueError(
                f"input_weight is [Re V; Im V] of shape (2n, H) = ({2 * n}, H); "
                f"got {tuple(input_weight.shape)}."
            )
    if readout is not None:
        if not isinstance(readout, tuple | list) or len(readout) != 2:
            raise TypeError(f"readout must be a pair (U, b_o); got {type(readout).__name__}.")
        check_matrix("the readout's U", readout[0], f"(k, 2n) = (k, {2 * n})")
    if nonlinearity is not None and not callable(nonlinearity):
        raise TypeError(
            f"nonlinearity must be a function z -> h; got {nonlinearity!r}. The modReLU is "
            "(bias, leak)."
        )


def _check_dtype(unitary: Unitary, real: torch.dtype) -> None:
    """Raise where W has another precision than the rest, which two engines would round apart."""
    for name, tensor in [*unitary.named_parameters(), *unitary.named_buffers()]:
        if tensor.is_floating_point() and tensor.dtype != real:
            raise TypeError(
                f"unitary's {name} must be {real}, like the weights; got {tensor.dtype}."
            )


def check_options(outputs: str, memory: str, backend: str) -> None:
    """Raise for an unknown name, with the valid ones and the nearest."""
    known("outputs", outputs, ("all", "last"))
    known("memory", memory, ("full", "constant"))
    known("backend", backend, dispatch.NAMES)
