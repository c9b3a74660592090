"""The operator `urnn::scan` as torch sees it: schema, fake kernel, autograd, batching.

Every tensor leads with an axis G of networks, and `vmap` is folded into it. The operator is
called from an `autograd.Function` inside a function that dynamo puts into its graph whole;
this is what works under eager, `torch.func`, `torch.compile` and `torch.export` alike. Asking
for what is not there (forward mode, second derivatives) raises, where a bare operator would
answer a silent zero.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from urnn.ops import stretches
from urnn.ops.manual import Manual
from urnn.ops.recurrence import token_message
from urnn.ops.stretches import Engine, Recurrence, differentiable
from urnn.precision import full_precision

ENGINES: dict[str, Engine] = {"manual": Manual()}

_RECURRENCE = (
    "Tensor x, Tensor? table, Tensor h_0, Tensor? bias, Tensor? readout, Tensor? lengths, "
    "Tensor[] matrix, float leak"
)
_library = torch.library.Library("urnn", "DEF")
_library.define(
    f"scan(str engine, str keep, bool last, {_RECURRENCE}) "
    "-> (Tensor output, Tensor h_n, Tensor kept)"
)
_library.define(
    "scan_backward(str engine, bool constant, bool input_gradient, "
    f"Tensor kept, Tensor? grad_output, Tensor grad_h, {_RECURRENCE}) -> Tensor[]"
)


def scan(engine: str, memory: str, last: bool, recurrence: Recurrence) -> tuple[Tensor, Tensor]:
    """Run the recurrence; return its outputs (none for `last`) and the final state.

    memory, "full" or "constant", says what is kept if there is going to be a backward pass.
    """
    r = recurrence
    tensors = (r.x, r.table, r.h_0, r.bias, r.readout, r.lengths, *r.matrix)
    keep = _keep(memory, tensors)
    output, h_n, _ = _apply(engine, memory, keep, last, r.leak, *tensors)
    return output, h_n


def _keep(memory: str, tensors: Sequence[Tensor | None]) -> str:
    """Return what to keep: nothing without a backward pass, or in a graph for others to run."""
    if torch.compiler.is_exporting() or not torch.is_grad_enabled():
        return "nothing"
    return memory if any(t is not None and t.requires_grad for t in tensors) else "nothing"


@torch.compiler.allow_in_graph
def _apply(
    engine: str, memory: str, keep: str, last: bool, leak: float, *tensors: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    options = Options(engine, memory, keep, last, leak)
    outputs: tuple[Tensor, Tensor, Tensor] = Scan.apply(options, *tensors)
    return outputs


class Options(NamedTuple):
    """What a call carries besides tensors."""

    engine: str
    memory: str
    keep: str
    last: bool
    leak: float
    input_gradient: bool = False


def _scan(engine: str, keep: str, last: bool, *recurrence: Any) -> tuple[Tensor, Tensor, Tensor]:
    r = Recurrence(*recurrence)
    _check_tokens(r)
    return stretches.forward(ENGINES[engine], r, last, keep)


def _scan_backward(
    engine: str,
    constant: bool,
    input_gradient: bool,
    kept: Tensor,
    grad_output: Tensor | None,
    grad_h: Tensor,
    *recurrence: Any,
) -> list[Tensor]:
    """Return the gradient of each tensor of the recurrence; (G, 0) for one that has none."""
    r = Recurrence(*recurrence)
    with full_precision(grad_h.device):
        sums, g = stretches.backward(
            ENGINES[engine], r, kept, constant, input_gradient, grad_output, grad_h
        )
    found = [sums.x, sums.table, g.clone(), sums.bias, sums.readout, None, *sums.matrix]
    return [_none(r) if gradient is None else gradient for gradient in found]


def _scan_fake(
    engine: str, keep: str, last: bool, *recurrence: Any
) -> tuple[Tensor, Tensor, Tensor]:
    r = Recurrence(*recurrence)
    G, N, n = r.h_0.shape
    L = r.x.shape[1]
    width = n if r.readout is None else r.readout.shape[1]
    dtype = r.h_0.dtype if r.readout is None else r.h_0.real.dtype
    output = r.h_0.new_empty((G, 0 if last else L, N, width), dtype=dtype)
    kept = r.h_0.new_empty((G, stretches.kept_steps(L, keep), N, n))
    return output, r.h_0.new_empty((G, N, n)), kept


def _scan_backward_fake(
    engine: str,
    constant: bool,
    input_gradient: bool,
    kept: Tensor,
    grad_output: Tensor | None,
    grad_h: Tensor,
    *recurrence: Any,
) -> list[Tensor]:
    r = Recurrence(*recurrence)
    inputs = [r.x if input_gradient else None, r.table, r.h_0, r.bias, r.readout, None, *r.matrix]
    return [
        _none(r) if t is None or not differentiable(t) else t.new_empty(t.shape) for t in inputs
    ]


def _none(recurrence: Recurrence) -> Tensor:
    return recurrence.h_0.new_empty((recurrence.h_0.shape[0], 0))


def _check_tokens(recurrence: Recurrence) -> None:
    """Raise for a token out of range, as F.embedding does; on a GPU the gather asserts itself."""
    x, table = recurrence.x, recurrence.table
    if table is None or differentiable(x) or not x.numel() or x.device.type != "cpu":
        return
    low, high = x.aminmax()
    if low < 0 or high >= table.shape[1]:
        raise IndexError(token_message(x, table.shape[1]))


for _device in ("CPU", "CUDA"):
    _library.impl("scan", _scan, _device)
    _library.impl("scan_backward", _scan_backward, _device)
torch.library.register_fake("urnn::scan", _scan_fake, lib=_library)
torch.library.register_fake("urnn::scan_backward", _scan_backward_fake, lib=_library)


class _NoForwardMode:
    """What neither Function offers, said when it is asked for."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(
            "this engine has no forward-mode derivative: its backward pass is derived by hand. "
            "Use backend='reference' for it."
        )


class Scan(_NoForwardMode, torch.autograd.Function):
    """The operator with its backward pass, for every way in which torch differentiates."""

    @staticmethod
    def forward(options: Options, *tensors: Tensor | None) -> Any:
        o = options
        recurrence = (*tensors[:6], list(tensors[6:]), o.leak)
        return torch.ops.urnn.scan(o.engine, o.keep, o.last, *recurrence)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.options, *tensors = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*tensors, output[2])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_h: Tensor, _: Tensor) -> Any:
        *tensors, kept = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        options = ctx.options._replace(input_gradient=needed[0])
        grads = ScanBackward.apply(options, kept, grad_output, grad_h, *tensors)
        return None, *(g if wanted else None for g, wanted in zip(grads, needed, strict=True))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], options: Options, *tensors: Any) -> Any:
        if options.keep == "nothing":
            # a batched tensor did not say that what it wraps requires a gradient: look again
            options = options._replace(keep=_keep(options.memory, tensors))
        return _fold(Scan, info.batch_size, in_dims, options, *tensors)


class ScanBackward(_NoForwardMode, torch.autograd.Function):
    """The backward pass as a node of its own, so that differentiating it again raises."""

    @staticmethod
    def forward(
        options: Options,
        kept: Tensor,
        grad_output: Tensor,
        grad_h: Tensor,
        *tensors: Tensor | None,
    ) -> Any:
        o = options
        found = kept, None if o.last else grad_output, grad_h
        recurrence = (*tensors[:6], list(tensors[6:]), o.leak)
        constant = o.keep == "constant"
        backward = torch.ops.urnn.scan_backward
        return tuple(backward(o.engine, constant, o.input_gradient, *found, *recurrence))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "this engine has no second derivative: its backward pass is derived by hand. "
            "Use backend='reference' for it. (Inside torch.compile(torch.func.grad(f)), detach "
            "the module's own parameters: they would ask for one.)"
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], options: Options, *tensors: Any) -> Any:
        return _fold(ScanBackward, info.batch_size, in_dims, options, *tensors)


def _fold(
    function: Any, batch: int, in_dims: tuple[Any, ...], options: Options, *tensors: Tensor | None
) -> Any:
    """Run a batch of B calls on G networks each as one call on B·G networks."""
    folded = [_folded(t, dim, batch) for t, dim in zip(tensors, in_dims[1:], strict=True)]
    outputs = function.apply(options, *folded)
    G = outputs[0].shape[0] // batch
    return tuple(o.unflatten(0, (batch, G)) for o in outputs), (0,) * len(outputs)


def _folded(t: Tensor | None, dim: int | None, batch: int) -> Tensor | None:
    """Return a tensor with its batch folded into the axis of networks."""
    if t is None:
        return None
    batched = t.expand(batch, *t.shape) if dim is None else t.movedim(dim, 0)
    return batched.flatten(0, 1)


# The bare operator, as it stands in a graph that torch.export made, has the same backward pass,
# but runs forward once more for it: such a graph is run without gradients more often than not.


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    engine, keep, last, *tensors, matrix, leak = inputs
    ctx.options = Options(engine, keep, keep, last, leak)
    ctx.save_for_backward(*tensors, *matrix, output[2])


def _backward(ctx: Any, grad_output: Tensor, grad_h: Tensor, _: Tensor) -> Any:
    *tensors, kept = ctx.saved_tensors
    options = ctx.options._replace(input_gradient=ctx.needs_input_grad[3])
    if options.keep == "nothing":
        options = options._replace(keep="constant")
        _, _, kept = Scan.forward(options, *tensors)
    grads = ScanBackward.apply(options, kept, grad_output, grad_h, *tensors)
    pairs = zip(grads, tensors, strict=True)
    found = [g if t is not None and differentiable(t) else None for g, t in pairs]
    return None, None, None, *found[:6], found[6:], None


torch.library.register_autograd("urnn::scan", _backward, setup_context=_setup, lib=_library)
