"""The precision in which a recurrence runs: float32 or float64, whatever autocast says."""

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off: a state that is rounded at each step drifts."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def complex_dtype(real: torch.dtype) -> torch.dtype:
    """Return the complex dtype of a real one (`torch.dtype.to_complex`, which dynamo refuses)."""
    return torch.complex128 if real == torch.float64 else torch.complex64
