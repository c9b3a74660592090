"""The loop: ground truth for every other engine, on any device, for any W and any σ.

Shapes: L steps, N sequences, H inputs, n units, k outputs.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from urnn.nonlinearity import Nonlinearity, prepare_mod_relu
from urnn.ops.recurrence import Answer, Network, Request, flip_time, real_output, token_message
from urnn.ops.stretches import plan
from urnn.unitary import Prepared

Stretch = Callable[[Tensor, Tensor], tuple[Tensor | None, Tensor]]


def reasons(request: Request) -> list[str]:
    """It serves everything."""
    return []


def run(request: Request) -> list[Answer]:
    """Return (output, h_n) of each network."""
    return [scan(network, request) for network in request.networks]


def scan(network: Network, request: Request) -> Answer:
    """Run one network over x, step by step: equations 1, 8 and 9 of the paper."""
    W = network.unitary.prepare()
    sigma = nonlinearity(network)
    x = flip_time(request.x, request.lengths) if network.reverse else request.x
    stretches = plan(request.steps)
    outputs: list[Tensor] = []
    h = network.h_0

    # split, because slices x[start:stop] would each have a gradient of the size of all of x
    pieces = x.split([stop - start for start, stop in stretches])
    for (start, _), piece in zip(stretches, pieces, strict=True):

        def stretch(x: Tensor, h: Tensor, start: int = start) -> tuple[Tensor | None, Tensor]:
            return _stretch(network, request, W, sigma, x, h, start)

        if request.constant and torch.is_grad_enabled():
            output, h = _recomputed(_guarded(stretch, network, request), piece, h)
        else:
            output, h = stretch(piece, h)
        if output is not None:
            outputs.append(output)

    if request.last:
        return read(network, h), h
    output = torch.cat(outputs)
    return (flip_time(output, request.lengths) if network.reverse else output), h


def _guarded(stretch: Stretch, network: Network, request: Request) -> Stretch:
    """Return the stretch, which raises where a parameter has changed when it is run again."""
    if torch.compiler.is_compiling():
        return stretch
    W, sigma = network.unitary, network.nonlinearity
    found = [network.input_weight, network.bias, network.readout, request.lengths]
    own = sigma.parameters() if isinstance(sigma, nn.Module) else ()
    tensors = [*W.parameters(), *W.buffers(), *found, *own]
    versions = [None if t is None else t._version for t in tensors]

    def run(x: Tensor, h: Tensor) -> tuple[Tensor | None, Tensor]:
        if versions != [None if t is None else t._version for t in tensors]:
            raise RuntimeError(
                "a parameter was modified in place between the forward and the backward pass, "
                "which recomputes with it (memory='constant')."
            )
        return stretch(x, h)

    return run


def _recomputed(stretch: Stretch, x: Tensor, h: Tensor) -> tuple[Tensor | None, Tensor]:
    """Run a stretch that keeps nothing, and runs again for its backward pass."""
    try:
        answer: tuple[Tensor | None, Tensor] = checkpoint(stretch, x, h, use_reentrant=False)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        raise RuntimeError(
            "memory='constant' in the reference engine does not work within torch.func "
            "transforms; use memory='full' there."
        ) from error
    return answer


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
        return _checked(network.nonlinearity)
    if network.bias is None:
        return lambda z: z
    return prepare_mod_relu(network.bias, network.leak)


def _checked(nonlinearity: Nonlinearity) -> Nonlinearity:
    """Return a user's own σ, which raises where it changes the shape or dtype."""

    def sigma(z: Tensor) -> Tensor:
        h = nonlinearity(z)
        if not isinstance(h, Tensor) or h.shape != z.shape or h.dtype != z.dtype:
            given = f"{h.dtype} {tuple(h.shape)}" if isinstance(h, Tensor) else type(h).__name__
            raise TypeError(
                f"nonlinearity must return {z.dtype} of shape {tuple(z.shape)}, like its "
                f"argument; it returned {given}."
            )
        return h

    return sigma


def read(network: Network, h: Tensor) -> Tensor:
    """Return U [Re h; Im h], or [Re h; Im h] where there is no readout."""
    o = real_output(h)
    return o if network.readout is None else F.linear(o, network.readout)
