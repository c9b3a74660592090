"""Unitary matrices as modules: factors, their products, and the paper's W.

One file a matrix. Every class follows the one protocol of `Unitary`; a matrix of your
own does too, with a constructor and a `prepare`.
"""

from urnn.unitary.arjovsky import arjovsky
from urnn.unitary.base import Adjoint, Compose, Prepared, Unitary
from urnn.unitary.diagonal import Diagonal
from urnn.unitary.fourier import Fourier
from urnn.unitary.permutation import Permutation
from urnn.unitary.reflection import Reflection
from urnn.unitary.spectral import Spectral

__all__ = [
    "Adjoint",
    "Compose",
    "Diagonal",
    "Fourier",
    "Permutation",
    "Prepared",
    "Reflection",
    "Spectral",
    "Unitary",
    "arjovsky",
]
