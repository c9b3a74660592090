"""Unitary recurrent neural networks for PyTorch.

`urnn.UnitaryRNN` stands where `torch.nn.LSTM` stood; `urnn.unitary` is the algebra its
hidden-to-hidden matrix is written in. Names are resolved on first use, so `import urnn`
alone does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from urnn import functional, init, unitary
    from urnn.cell import UnitaryRNNCell
    from urnn.nonlinearity import ModReLU, SplitReLU
    from urnn.ops.dispatch import explain, use_backend
    from urnn.rnn import UnitaryRNN

_HOME = {
    "UnitaryRNN": "urnn.rnn",
    "UnitaryRNNCell": "urnn.cell",
    "ModReLU": "urnn.nonlinearity",
    "SplitReLU": "urnn.nonlinearity",
    "explain": "urnn.ops.dispatch",
    "use_backend": "urnn.ops.dispatch",
}
_MODULES = ("functional", "init", "unitary")

__all__ = [
    "ModReLU",
    "SplitReLU",
    "UnitaryRNN",
    "UnitaryRNNCell",
    "explain",
    "functional",
    "init",
    "unitary",
    "use_backend",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"urnn.{name}")
    raise AttributeError(f"module 'urnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
