"""Losses and ids as a training loop has them, torch tensors or arrays, made into arrays without stalling
the loop.

torch is never imported here: a tensor is known by its methods, and whoever has one has imported torch. Few
calls on purpose: after a training step nothing of ours is in the CPU's caches, and each call costs 2-10 us.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Captured = NDArray[Any] | Callable[[], NDArray[Any]]
"""An array, or what gives it when called; the call may wait for a device, so it is made off the loop."""


def capture(values: Any) -> Captured:
    """A snapshot of ``values``; later in-place changes by the loop do not reach it.

    A CUDA tensor is copied asynchronously on the current stream into pinned memory: nothing waits here.
    """
    if getattr(values, "is_cuda", False):
        return _copy_later(values.detach())
    if not hasattr(values, "detach"):
        return np.array(values)
    try:
        return np.array(values.numpy(force=True))
    except TypeError:
        # NumPy has no bfloat16.
        return np.array(values.float().numpy(force=True))


def settle(captured: Captured) -> NDArray[Any]:
    """The array, once its copy has arrived."""
    return captured if isinstance(captured, np.ndarray) else captured()


def _copy_later(tensor: Any) -> Captured:
    # Widened on the device, because NumPy has no bfloat16 and this keeps it one asynchronous copy.
    host = (tensor.float() if tensor.is_floating_point() else tensor).to("cpu", non_blocking=True)
    cuda = sys.modules["torch"].cuda
    copied = cuda.Event()
    copied.record(cuda.current_stream(tensor.device))

    def arrived() -> NDArray[Any]:
        copied.synchronize()
        return np.asarray(host.numpy())

    return arrived
