"""Which engine runs a request, and why not the others."""

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from urnn.ops import lower, normal_form, reference
from urnn.ops.recurrence import Answer, Request
from urnn.validation import known


class Backend(NamedTuple):
    """An engine: the sentences that speak against a request, and how it runs one."""

    reasons: Callable[[Request], list[str]]
    run: Callable[[Request], list[Answer]]


# In the order in which "auto" prefers them.
BACKENDS: dict[str, Backend] = {
    "manual": Backend(lower.reasons, partial(lower.run, engine="manual")),
    "reference": Backend(reference.reasons, reference.run),
}
NAMES = ("auto", *BACKENDS)

_preferred = "auto"


def run(request: Request, backend: str) -> list[Answer]:
    """Return (output, h_n) of each network, by the backend that was asked for."""
    return BACKENDS[choose(request, backend)].run(request)


def choose(request: Request, backend: str) -> str:
    """Return the name of the backend that runs a request.

    A backend that is named either runs or raises its reasons; "auto" is what `use_backend`
    says, else the first backend that has nothing against the request.
    """
    backend = _preferred if backend == "auto" else backend
    if backend == "auto":
        return next(name for name in BACKENDS if not BACKENDS[name].reasons(request))
    against = BACKENDS[backend].reasons(request)
    if against:
        raise ValueError(f"backend={backend!r} cannot run this: {'; '.join(against)}.")
    return backend


class use_backend:  # noqa: N801 (used like torch.no_grad)
    """Say which backend "auto" stands for, from now on or within a `with` block.

    It holds for the whole process. A layer or call that names its own backend keeps it.

    Args:
        name: "auto", "manual" or "reference".

    Example:
        >>> rnn = urnn.UnitaryRNN(2, 4)
        >>> with urnn.use_backend("reference"):
        ...     output, h_n = rnn(torch.randn(5, 3, 2))
    """

    def __init__(self, name: str) -> None:
        global _preferred
        self.name = known("backend", name, NAMES)
        self._before = _preferred
        _preferred = self.name

    def __enter__(self) -> None:
        global _preferred
        if _preferred != self.name:  # entered again
            self._before, _preferred = _preferred, self.name

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _preferred
        _preferred = self._before


class Explainable(Protocol):
    """A layer that can say what it would ask of the engines."""

    backend: str

    def requests(self, x: Any) -> list[tuple[str, Request]]:
        """Return a label and a request for each call it would make for an input x."""


def explain(rnn: Explainable, x: Tensor | PackedSequence) -> str:
    """Print and return which engine runs each layer of rnn on x, why, and why not the others.

    Example:
        >>> _ = urnn.explain(urnn.UnitaryRNN(10, 128), torch.zeros(50, 4, 10))
        layer 0 runs in the 'manual' engine, the first that can of manual, reference.
            W is structured: 2 Fourier transforms and 2 reflections, about 14848 floating-point
            operations a step and sequence.
            reference: could run it too.
    """
    if not hasattr(rnn, "requests"):
        raise TypeError(f"explain takes a urnn.UnitaryRNN; got {type(rnn).__name__}.")
    text = "\n".join(_explain(label, request, rnn.backend) for label, request in rnn.requests(x))
    print(text)
    return text


def _explain(label: str, request: Request, backend: str) -> str:
    named = _preferred if backend == "auto" else backend
    if named != "auto" and BACKENDS[named].reasons(request):
        chosen = None
        lines = [f"{label} cannot run in the {named!r} engine, which was named."]
    else:
        chosen = choose(request, backend)
        why = (
            f"the first that can of {', '.join(BACKENDS)}" if named == "auto" else "which was named"
        )
        lines = [f"{label} runs in the {chosen!r} engine, {why}."]
    if chosen not in (None, "reference"):
        lines += dict.fromkeys(normal_form.describe(n.unitary) for n in request.networks)
    for name, other in BACKENDS.items():
        if name != chosen:
            against = other.reasons(request)
            lines.append(f"{name}: " + ("; ".join(against) or "could run it too") + ".")
    return "\n    ".join(lines)
