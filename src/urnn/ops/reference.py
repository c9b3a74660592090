"""The loop: ground truth for every other engine, on any device, for any W and any σ.

Shapes: L steps, N sequences, H inputs, n units, k outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from urnn.nonlinearity import Nonlinearity, prepare_mod_relu
from urnn.ops.recurrence import Answer, Network, Request, flip_time, real_output, token_message
from urnn.ops.stretches import plan
from urnn.unitary import Prepared


def reasons(request: Request) -> list[str]:
    """It serves everything."""
    return []


def run(request: Request) -> list[Answer]:
    """Return (output, h_n) of each network."""
    return [scan(network, request) for network in request.networks]


def scan(network: Network, request: Request) -> Answer:
    """Run one network over x, step by step: equations 1, 8 and 10 of the paper."""
    W = network.unitary.prepare()
    sigma = nonlinearity(network)
    x = flip_time(request.x, request.lengths) if network.reverse else request.x
    outputs: list[Tensor] = []
    h = network.h_0

    for start, stop in plan(request.steps):

        def stretch(x: Tensor, h: Tensor, start: int = start) -> tuple[Tensor | None, Tensor]:
            return _stretch(network, request, W, sigma, x, h, start)

        if request.constant and torch.is_grad_enabled():
            output, h = checkpoint(
                stretch, x[start:stop], h, use_reentrant=False, preserve_rng_state=False
            )
        else:
            output, h = stretch(x[start:stop], h)
        if output is not None:
            outputs.append(output)

    if request.last:
        return read(network, h), h
    output = torch.cat(outputs)
    return (flip_time(output, request.lengths) if network.reverse else output), h


def _stretch(
    network: Network,
    request: Request,
    W: Prepared,
    sigma: Nonlinearity,
    x: Tensor,
    h: Tensor,
    start: int,
) -> tuple[Tensor | None, Tensor]:
    """Run the steps of x from the state h; return their outputs, if wanted, and the last state."""
    states: list[Tensor] = []
    # unbind, because indexing u[t] would make the backward pass quadratic in L
    for t, u_t in enumerate(project(x, network.input_weight).unbind(0), start):
        h_t = sigma(W.apply(h) + u_t)
        if request.lengths is not None:
            h_t = torch.where((t < request.lengths)[:, None], h_t, h)
        h = h_t
        if not request.last:
            states.append(h)
    if request.last:
        return None, h
    output = read(network, torch.stack(states))
    if request.lengths is not None:
        steps = torch.arange(start, start + len(states), device=h.device)[:, None]
        output = torch.where((steps < request.lengths)[..., None], output, 0)
    return output, h


def project(x: Tensor, input_weight: Tensor | None) -> Tensor:
    """Return u = V x, complex (…, n), for real x (…, H) or tokens (…); or x itself."""
    if input_weight is None:
        return x
    if x.is_floating_point():
        u = F.linear(x, input_weight)
    else:
        try:
            u = F.embedding(x, input_weight.mT)
        except IndexError as error:
            raise IndexError(token_message(x, input_weight.shape[1])) from error
    return torch.complex(*u.chunk(2, dim=-1))


def nonlinearity(network: Network) -> Nonlinearity:
    """Return σ of a network, with what depends on b alone computed once."""
    if network.nonlinearity is not None:
        return network.nonlinearity
    if network.bias is None:
        return lambda z: z
    return prepare_mod_relu(network.bias, network.leak)


def read(network: Network, h: Tensor) -> Tensor:
    """Return U [Re h; Im h], or [Re h; Im h] where there is no readout."""
    o = real_output(h)
    return o if network.readout is None else F.linear(o, network.readout)
