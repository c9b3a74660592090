"""From networks to the operator's tensors and back: normal form, gauge, directions.

In the gauge h′ = D h with D = diag(gauge) the recurrence reads h′_t = σ(W′h′_{t−1} + D u_t),
because σ commutes with phases. So D goes into V and h₀ on the way in, into U for the readout
(o = Re(conj(U) h) = Re(conj(DU) h′)), and is undone on states that leave. It is a constant
there: the phases in it get their gradient through the normal form's `turn`.
"""

import torch
from torch import Tensor

from urnn.ops.normal_form import Dense, normal_form
from urnn.ops.recurrence import Answer, Network, Request, flip_time, real_output
from urnn.ops.registry import scan
from urnn.ops.stretches import Recurrence


def reasons(request: Request) -> list[str]:
    """Return why the engines of the normal form cannot serve a request."""
    found = []
    if any(network.nonlinearity is not None for network in request.networks):
        found.append(
            "the nonlinearity is a function of its own; only the radial family (bias, leak) "
            "has a backward pass derived by hand"
        )
    device = request.x.device.type
    if device not in ("cpu", "cuda", "meta"):
        found.append(f"its operator is not registered for the device {device!r}")
    if torch.autograd.forward_ad._current_level >= 0:  # -1 outside of any forward-mode context
        found.append("forward-mode derivatives are being taken, and it has none")
    return found


def run(request: Request, engine: str) -> list[Answer]:
    """Return (output, h_n) of each network, all in one call where their shapes allow it."""
    lowered = [_Lowered(network, request) for network in request.networks]
    if len({network.signature for network in lowered}) == 1:
        return _run_together(lowered, request, engine)
    return [answer for one in lowered for answer in _run_together([one], request, engine)]


class _Lowered:
    """One network's tensors, without the axis of networks."""

    def __init__(self, network: Network, request: Request) -> None:
        n = network.unitary.size
        h_0 = network.h_0
        form = normal_form(network.unitary, h_0.dtype, h_0.device)
        self.network = network
        dense = isinstance(form, Dense)
        self.gauge = None if dense else form[0]
        self.matrix: tuple[Tensor, ...] = form if dense else form[1:]
        self.h_0 = self._into_gauge(h_0)
        self.x = flip_time(request.x, request.lengths) if network.reverse else request.x
        self.table: Tensor | None = None
        if network.input_weight is not None:
            V = torch.complex(network.input_weight[:n], network.input_weight[n:])
            self.table = self._into_gauge(V.mT).contiguous()
        else:
            self.x = self._into_gauge(self.x)
        self.readout: Tensor | None = None
        if network.readout is not None and not request.last:
            U = torch.complex(network.readout[:, :n], network.readout[:, n:])
            self.readout = self._into_gauge(U)
        shapes = tuple(part.shape for part in self.matrix)
        width = None if self.readout is None else self.readout.shape
        self.signature = (shapes, width, network.bias is None, network.leak)

    def _into_gauge(self, z: Tensor) -> Tensor:
        return z if self.gauge is None else self.gauge * z

    def out_of_gauge(self, z: Tensor) -> Tensor:
        return z if self.gauge is None else self.gauge.conj() * z


def _run_together(lowered: list[_Lowered], request: Request, engine: str) -> list[Answer]:
    first = lowered[0].network
    recurrence = Recurrence(
        x=_stack([one.x for one in lowered]),
        table=_maybe_stack([one.table for one in lowered]),
        h_0=_stack([one.h_0 for one in lowered]),
        bias=_maybe_stack([one.network.bias for one in lowered]),
        readout=_maybe_stack([one.readout for one in lowered]),
        lengths=_maybe_stack([request.lengths for _ in lowered]),
        matrix=[_stack(list(p)) for p in zip(*(one.matrix for one in lowered), strict=True)],
        leak=first.leak,
    )
    memory = "constant" if request.constant else "full"
    outputs, states = scan(engine, memory, request.last, recurrence)
    return [
        _answer(one, request, output, h)
        for one, output, h in zip(lowered, outputs.unbind(0), states.unbind(0), strict=True)
    ]


def _answer(one: _Lowered, request: Request, output: Tensor, h: Tensor) -> Answer:
    network = one.network
    h = one.out_of_gauge(h)
    if request.last:
        o = real_output(h)
        return (o if network.readout is None else o @ network.readout.mT), h
    if one.readout is None:
        output = real_output(one.out_of_gauge(output))
    return (flip_time(output, request.lengths) if network.reverse else output), h


def _stack(tensors: list[Tensor]) -> Tensor:
    """Stack the networks' tensors; one that they share is not copied."""
    if all(tensor is tensors[0] for tensor in tensors):
        return tensors[0].expand(len(tensors), *tensors[0].shape)
    return torch.stack(tensors)


def _maybe_stack(tensors: list[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return _stack(present) if present else None
