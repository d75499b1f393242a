"""Turns losses and ids from a training loop, torch tensors or arrays, into one number a sample, without
making the loop wait.

torch is never imported here: a tensor is recognised by its methods, and a caller that has a tensor has
imported torch. In the training loop this module makes few calls, and these only copy bytes. The reason is
that after a training step none of this code is in the CPU's caches, so each call costs 2-10 us. Measured are
20 us for the first ``Tensor.numpy``, 12 us for a copy by ``np.array`` and 5 us for one by ``tobytes``. The
background thread makes arrays from the bytes, and computes means over tokens.
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Copied = tuple[bytes, np.dtype[Any], tuple[int, ...]]
"""An array's bytes in C order, its type and its shape. It is a plain tuple, because a named tuple would cost
another call.
"""

Captured = Copied | NDArray[Any] | Callable[[], NDArray[Any]]
"""An array, the bytes of an array, or a function that returns an array. The function may wait for a device,
so the training loop must not call it.
"""


_MOST_IDLE = 8
_MOST_SHAPES = 16
_idle_buffers: dict[Any, deque[tuple[Any, Any]]] = {}
"""Pinned memory and an event for the next copies from a device, by device, type and shape of the tensor. They
are reused, because making new ones takes a good part of the time of ``capture``. Any thread appends and pops.
"""

Report = tuple[int, Captured, Captured, Captured | None, Captured | None]
"""One reported batch: epoch, ids, losses, mask and lengths. At least one of mask and lengths is None."""


def capture(values: Any) -> Captured:
    """Return a copy of ``values``, which stays as it is when the loop changes ``values`` in place.

    A CUDA tensor is copied to the host asynchronously, on the current stream, so that this call does not wait
    for the device.
    """
    try:
        on_device = values.is_cuda
    except AttributeError:
        return np.array(values)
    if on_device:
        return _copy_later(values.detach())
    try:
        array = values.numpy(force=True)
    except TypeError:
        # NumPy has no bfloat16.
        array = values.float().numpy(force=True)
    return array.tobytes(), array.dtype, array.shape


def settle(captured: Captured) -> NDArray[Any]:
    """Return the array of ``captured``. If the array is still on its way from a device, wait for it."""
    if isinstance(captured, tuple):
        data, dtype, shape = captured
        return np.frombuffer(data, dtype).reshape(shape)
    return captured if isinstance(captured, np.ndarray) else captured()


def per_sample(report: Report) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the ids of ``report``, and one loss for each id: the mean of the losses that ``mask`` or
    ``lengths`` select, nan if they select none. Raises ValueError or TypeError with a text that says what to
    pass instead.
    """
    _, reported_ids, reported_losses, mask, lengths = report
    ids, losses = settle(reported_ids), np.asarray(settle(reported_losses), dtype=np.float64)
    if ids.ndim != 1 or losses.shape[:1] != ids.shape:
        raise ValueError(_mismatch(ids.shape, losses.shape))
    counting = _counting(mask, lengths, losses.shape)
    if counting is None:
        counting = np.ones(losses.shape, dtype=np.bool_)
    tokens_of = tuple(range(1, losses.ndim))
    counts = counting.sum(axis=tokens_of)
    totals = np.where(counting, losses, 0.0).sum(axis=tokens_of)
    return ids, np.divide(totals, counts, out=np.full(ids.size, np.nan), where=counts > 0)


def _counting(
    masked: Captured | None, counted: Captured | None, shape: tuple[int, ...]
) -> NDArray[np.bool_] | None:
    """Return which of the losses count, as an array of bool of the shape ``shape``; None if all of them
    count.
    """
    if masked is not None:
        mask = settle(masked)
        if mask.shape != shape:
            raise ValueError(f"a mask {mask.shape} for losses {shape}: give both the same shape")
        return mask.astype(np.bool_)
    if counted is None:
        return None
    lengths = settle(counted)
    if len(shape) != 2 or lengths.shape != shape[:1]:
        raise ValueError(
            f"lengths {lengths.shape} for losses {shape}: lengths is one number of tokens a sample, (b,), "
            "for losses (b, tokens)"
        )
    first: NDArray[np.bool_] = np.arange(shape[1]) < lengths[:, None]
    return first


def _mismatch(ids: tuple[int, ...], losses: tuple[int, ...]) -> str:
    if not losses:
        return "the loss is a single number: give one loss per sample, as with reduction='none'"
    if len(ids) == len(losses) == 1 and ids[0] and losses[0] > ids[0] and losses[0] % ids[0] == 0:
        return (
            f"{ids} ids and {losses} losses: give one loss per sample; token losses as (samples, tokens), "
            f"here losses.view({ids[0]}, {losses[0] // ids[0]})"
        )
    return f"{ids} ids and {losses} losses: give one loss per sample, ids (b,) and losses (b,) or (b, tokens)"


def _copy_later(tensor: Any) -> Captured:
    key = tensor.device, tensor.dtype, tensor.shape
    try:
        host, copied = _idle_buffers[key].pop()
    except (KeyError, IndexError):
        host, copied = _new_buffer(tensor)
    # The buffer may have another type than the tensor, because NumPy has no bfloat16. Then torch first
    # converts the values on the device.
    host.copy_(tensor, non_blocking=True)
    copied.record(sys.modules["torch"].cuda.current_stream(tensor.device))

    def arrived() -> NDArray[Any]:
        copied.synchronize()
        array = np.array(host.numpy())
        if len(_idle_buffers) >= _MOST_SHAPES and key not in _idle_buffers:
            _idle_buffers.clear()
        _idle_buffers.setdefault(key, deque(maxlen=_MOST_IDLE)).append((host, copied))
        return array

    return arrived


def _new_buffer(tensor: Any) -> tuple[Any, Any]:
    """Return pinned memory for the values of ``tensor``, and an event that shows when they have arrived."""
    torch = sys.modules["torch"]
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    # Make memory that can be used in any mode, because this copy may be made in inference mode, and later
    # ones outside of it.
    with torch.inference_mode(mode=False):
        host = torch.empty(tensor.shape, dtype=dtype, device="cpu", pin_memory=True)
    return host, torch.cuda.Event()
