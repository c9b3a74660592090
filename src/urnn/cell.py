"""One step of the recurrence, for people who write their own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from urnn import init as initialisation
from urnn.nonlinearity import Nonlinearity, SplitReLU, project_nonpositive, radial
from urnn.ops import reference
from urnn.ops.recurrence import Network
from urnn.precision import complex_dtype, full_precision
from urnn.unitary import Spectral, Unitary, arjovsky
from urnn.validation import (
    check_tensor,
    checked_input,
    is_tokens,
    known,
    positive_integer,
)

UNITARIES: dict[str, Callable[[int], Unitary]] = {
    "arjovsky": arjovsky,
    "spectral": Spectral,
    "orthogonal": lambda n: Spectral(n, real=True),
}
LEAKS = {"modrelu": 0.0, "leaky_modrelu": 0.5, "modrelu_nonpositive": 0.0}
NONLINEARITIES = (*LEAKS, "split_relu")


class UnitaryRNNCell(nn.Module):
    """One step h′ = σ(W h + V x) with a unitary W (equations 1 and 8 of the paper).

    Args:
        input_size: H, the number of features (or of categories, for integer tokens).
        hidden_size: n, the number of complex units.
        bias: learn the modReLU's b; without it the recurrence is linear.
        unitary: "arjovsky" (the paper's W), "spectral" (V D V*), "orthogonal" (Lemma 1's real
            W), or a callable n → Unitary.
        nonlinearity: "modrelu", "leaky_modrelu", "modrelu_nonpositive", "split_relu", a
            Module, or a callable z → h.
        initial_state: "learned", or "zero".
        init: "paper", "theano", or a callable that takes the cell.

    Attributes:
        unitary: W.
        input_weight: [Re V; Im V], (2n, H).
        bias: b, (n,), or None.
        initial_state: [Re h₀; Im h₀], (2n,), or None.

    Shape:
        x: (N, H) or (H,), or integer tokens (N,) or (); h: complex (N, n) or (n,).

    Example:
        >>> cell = urnn.UnitaryRNNCell(3, 8)
        >>> h = None
        >>> for x_t in torch.randn(5, 2, 3):
        ...     h = cell(x_t, h)
        >>> h.shape, h.dtype
        (torch.Size([2, 8]), torch.complex64)
    """

    unitary: Unitary
    input_weight: Tensor
    bias: Tensor | None
    initial_state: Tensor | None
    nonlinearity: str | Nonlinearity
    init: Callable[[Any], object]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        unitary: str | Callable[[int], Unitary] = "arjovsky",
        nonlinearity: str | Nonlinearity = "modrelu",
        initial_state: str = "learned",
        init: str | Callable[[Any], object] = "paper",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = positive_integer("input_size", input_size)
        self.hidden_size = n = positive_integer("hidden_size", hidden_size)
        known("initial_state", initial_state, ("learned", "zero"))
        dtype = _checked_dtype(dtype)
        self.unitary = _made_unitary(unitary, n, device, dtype)
        self.nonlinearity = _made_nonlinearity(nonlinearity, n, bias, device, dtype)
        self.init = checked_init(init)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        radial = isinstance(self.nonlinearity, str)
        self.input_weight = parameter(2 * n, self.input_size)
        self.register_parameter("bias", parameter(n) if bias and radial else None)
        learned = initial_state == "learned"
        self.register_parameter("initial_state", parameter(2 * n) if learned else None)
        initialise(self, self.init)

    def reset_parameters(self) -> None:
        """Draw W and everything else anew."""
        self.reset_parts()
        initialise(self, self.init)

    def reset_parts(self) -> None:
        """Let the factors of W and the nonlinearity draw themselves anew."""
        for module in self.modules():
            reset = getattr(module, "reset_parameters", None)
            if module is not self and callable(reset):
                reset()

    def prepare(self) -> Callable[..., Tensor]:
        """Return the step (x, h) ↦ h′ with W prepared once, for streaming.

        It holds the parameters as they are now: call `prepare` again after they change.

        Example:
            >>> cell = urnn.UnitaryRNNCell(3, 8)
            >>> with torch.no_grad():
            ...     step = cell.prepare()
            ...     h = step(torch.randn(2, 3))
            ...     h = step(torch.randn(2, 3), h)
        """
        first = self.first_state()
        with full_precision(first.device):
            W, sigma = self.unitary.prepare(), reference.nonlinearity(self.network(first))

        def step(x: Tensor, h: Tensor | None = None) -> Tensor:
            x = checked_input(x, self.input_weight, layout=("N",))
            batch = x.shape if is_tokens(x) else x.shape[:-1]
            if h is not None:
                check_tensor("h", h, (*batch, self.hidden_size), first.dtype, x.device)
            with full_precision(x.device):
                u = reference.project(x, self.input_weight)
                return sigma(W.apply(first if h is None else h) + u)

        return step

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        return self.prepare()(x, h)

    def first_state(self) -> Tensor:
        """Return h₀, complex (n,): learned, or zero."""
        if self.initial_state is not None:
            return torch.complex(*self.initial_state.chunk(2))
        weight = self.input_weight
        return weight.new_zeros(self.hidden_size, dtype=complex_dtype(weight.dtype))

    def network(self, h_0: Tensor, readout: Tensor | None = None, reverse: bool = False) -> Network:
        """Return what the engines need to know of this cell."""
        bias, leak, nonlinearity = self.bias, 0.0, None
        if isinstance(self.nonlinearity, str):
            leak = LEAKS[self.nonlinearity]
            if bias is not None and self.nonlinearity == "modrelu_nonpositive":
                bias = project_nonpositive(bias)
        else:
            bias, leak, nonlinearity = radial(self.nonlinearity, self.hidden_size)
        return Network(
            unitary=self.unitary,
            h_0=h_0,
            input_weight=self.input_weight,
            bias=bias,
            leak=leak,
            nonlinearity=nonlinearity,
            readout=readout,
            reverse=reverse,
        )

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        if isinstance(self.nonlinearity, str):
            parts.append(f"nonlinearity={self.nonlinearity!r}")
            if self.bias is None:
                parts.append("bias=False")
        if self.initial_state is None:
            parts.append("initial_state='zero'")
        return ", ".join(parts)


def initialise(module: Any, init: Callable[[Any], object]) -> None:
    """Run an initialiser on a layer or cell, outside of autograd."""
    with torch.no_grad():
        init(module)


def checked_init(init: str | Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the initialiser of a name, or the callable itself."""
    if callable(init):
        return init
    names = initialisation.INITIALISERS
    return names[known("init", init, names, " or a callable that takes the layer")]


def left_to_the_layer(cell: UnitaryRNNCell) -> None:
    """Initialise nothing: the layer that makes the cell initialises all of them together."""


def _made_unitary(
    unitary: str | Callable[[int], Unitary],
    n: int,
    device: torch.device | str | None,
    dtype: torch.dtype,
) -> Unitary:
    """Return W by its name or its maker, with the layer's dtype and device as defaults."""
    if not callable(unitary) or isinstance(unitary, nn.Module):
        unitary = UNITARIES[known("unitary", unitary, UNITARIES, " or a callable n -> Unitary")]
    with _default(dtype), torch.device(device or torch.get_default_device()):
        W = unitary(n)
    if not isinstance(W, Unitary):
        raise TypeError(f"unitary must return a urnn.unitary.Unitary; it returned {W!r}.")
    if W.size != n:
        raise ValueError(f"unitary must return a matrix of size {n} (hidden_size); got {W.size}.")
    tensors = [*W.parameters(), *W.buffers()]
    if any(t.is_floating_point() and t.dtype != dtype for t in tensors):
        # not .to(dtype), which would make a complex buffer of a user's own real
        W = W.double() if dtype == torch.float64 else W.float()
    return W if device is None else W.to(device)


def _made_nonlinearity(
    nonlinearity: str | Nonlinearity,
    n: int,
    bias: bool,
    device: torch.device | str | None,
    dtype: torch.dtype,
) -> str | Nonlinearity:
    """Return the name of a radial σ, or the function that is σ."""
    if callable(nonlinearity) and not isinstance(nonlinearity, type):
        radial(nonlinearity, n)  # raises for a ModReLU of another size
        return nonlinearity
    known("nonlinearity", nonlinearity, NONLINEARITIES, ", a Module or a function z -> h")
    if nonlinearity == "split_relu":
        return SplitReLU(n, bias, device=device, dtype=dtype)
    return nonlinearity


def _checked_dtype(dtype: torch.dtype | None) -> torch.dtype:
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"dtype must be torch.float32 or torch.float64; got {dtype}. Parameters are real, and "
            "for half precision there is torch.autocast."
        )
    return dtype


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """Make dtype torch's default for a moment, so that a user's own W is made in it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
