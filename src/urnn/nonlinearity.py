"""modReLU, its radial relatives, and the separate ReLUs that the paper tried first."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from urnn.validation import check_complex, checked_leak, positive_integer

Nonlinearity = Callable[[Tensor], Tensor]


def prepare_mod_relu(bias: Tensor, leak: float) -> Nonlinearity:
    """Return z ↦ σ(z) of `functional.mod_relu`, with what depends on b alone computed once.

    A living unit adds b along the phase of z, σ(z) = z + b·z/|z|. For |z| up to a threshold
    it is linear instead, σ(z) = slope·z (`linear_piece`). A NaN fails every comparison, so a
    NaN in z or in b takes the living branch and comes out as NaN.
    """
    threshold, slope = linear_piece(bias, leak)

    def apply(z: Tensor) -> Tensor:
        linear = z.abs() <= threshold
        phase = torch.where(linear, 1, z).sgn()  # no derivative at or near 0 is ever formed
        return torch.where(linear, slope * z, z + bias * phase)

    return apply


def linear_piece(bias: Tensor, leak: float) -> tuple[Tensor, Tensor]:
    """Return the modulus up to which σ is linear, and its slope there.

    r + b ≤ αr for b < 0, and r + b ≥ r/α for b > 0, are r ≤ −b/(1 − α) and r ≤ αb/(1 − α).
    The slope is α, 1 or 1/α for b <, =, > 0 (0 in place of 1/0); it is the derivative at the
    kink too, and ∂σ/∂b is 0 there. A modulus below the normal numbers always belongs to the
    linear piece, so that nothing is ever divided by a subnormal number.
    """
    b = bias.detach()
    tiny = torch.finfo(b.dtype).tiny
    threshold = torch.where(b < 0, -b, leak * b).div(1 - leak).clamp(min=tiny)
    steep = 1 / leak if leak > 0 else 0.0
    slope = torch.ones_like(b).masked_fill(b < 0, leak).masked_fill(b > 0, steep)
    return threshold, slope


class ModReLU(nn.Module):
    """The paper's nonlinearity, σ(z) = max(|z| + b, 0)·z/|z|, and its invertible relatives.

    Args:
        size: n, the number of units, each with a bias b.
        leak: α ∈ [0, 1); above 0 the function is invertible (see `functional.mod_relu`).
        nonpositive: keep b ≤ 0, and with it the paper's bound on gradients (its Jacobian's
            norm is then at most 1; for b > 0 it is 1 + b/|z|, without limit near z = 0).

    Attributes:
        bias: b, shape (n,), 0 at the start.

    Shape:
        z: complex (…, n) → complex (…, n).

    Example:
        >>> sigma = urnn.ModReLU(3, leak=0.5)
        >>> z = torch.randn(2, 3, dtype=torch.complex64)
        >>> torch.allclose(sigma.inverse(sigma(z)), z)
        True
    """

    bias: Tensor

    def __init__(
        self,
        size: int,
        leak: float = 0.0,
        nonpositive: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = positive_integer("size", size)
        self.leak = checked_leak(leak)
        self.nonpositive = nonpositive
        self.bias = nn.Parameter(torch.zeros(self.size, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Set b = 0: the network is linear at the start."""
        nn.init.zeros_(self.bias)

    @property
    def effective_bias(self) -> Tensor:
        """The b that acts, which is the parameter itself or its projection to b ≤ 0."""
        return project_nonpositive(self.bias) if self.nonpositive else self.bias

    def forward(self, z: Tensor) -> Tensor:
        check_complex("ModReLU", z, self.size)
        return prepare_mod_relu(self.effective_bias, self.leak)(z)

    def inverse(self, h: Tensor) -> Tensor:
        """Return the z with σ(z) = h: the same function with −b."""
        if self.leak == 0:
            raise ValueError(
                "modReLU with leak 0 has no inverse: it maps all |z| ≤ −b to 0. Use leak > 0."
            )
        return prepare_mod_relu(-self.effective_bias, self.leak)(h)

    def extra_repr(self) -> str:
        nonpositive = ", nonpositive=True" if self.nonpositive else ""
        return f"{self.size}, leak={self.leak}{nonpositive}"


class SplitReLU(nn.Module):
    """relu(Re z + b₁) + i·relu(Im z + b₂), which the paper tried first and found poor.

    It does not keep the phase. Runs in the reference engine.

    Args:
        size: n.
        bias: learn b₁ and b₂, or leave them out.

    Attributes:
        bias: shape (2, n), rows b₁ and b₂, 0 at the start; None without bias.

    Example:
        >>> urnn.SplitReLU(1)(torch.tensor([3 - 4j]))
        tensor([3.+0.j], grad_fn=<ComplexBackward0>)
    """

    bias: Tensor | None

    def __init__(
        self,
        size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = positive_integer("size", size)
        b = torch.zeros(2, self.size, device=device, dtype=dtype)
        self.register_parameter("bias", nn.Parameter(b) if bias else None)

    def reset_parameters(self) -> None:
        """Set both biases to 0."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, z: Tensor) -> Tensor:
        check_complex("SplitReLU", z, self.size)
        re, im = z.real, z.imag
        if self.bias is not None:
            re, im = re + self.bias[0], im + self.bias[1]
        return torch.complex(re.relu(), im.relu())

    def extra_repr(self) -> str:
        return f"{self.size}, bias={self.bias is not None}"


def radial(
    nonlinearity: Nonlinearity, size: int
) -> tuple[Tensor | None, float, Nonlinearity | None]:
    """Return (b, α, None) for a ModReLU, which every engine runs, else (None, 0, σ)."""
    if type(nonlinearity) is not ModReLU:
        return None, 0.0, nonlinearity
    if nonlinearity.size != size:
        raise ValueError(f"the ModReLU must have {size} units, like W; got {nonlinearity.size}.")
    return nonlinearity.effective_bias, nonlinearity.leak, None


class _Project(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(b: Tensor) -> Tensor:
        return b.clamp(max=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (b,) = ctx.saved_tensors
        return torch.where((b >= 0) & (grad < 0), 0, grad)  # descent would leave b ≤ 0: stay

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (b,) = ctx.saved_tensors
        return torch.where(b > 0, 0, tangent)


@torch.compiler.allow_in_graph  # dynamo does not look into a Function with a jvp of its own
def project_nonpositive(bias: Tensor) -> Tensor:
    """Return min(b, 0), with the gradient of projected descent.

    A gradient that would push b above 0 is stopped at the boundary, one that pulls it back
    passes, so a unit that has reached b = 0 can always leave it again. (The derivative of
    min(b, 0) itself would leave it there for good; it is what a graph made by torch.export has.)
    """
    projected: Tensor = _Project.apply(bias)
    return projected
