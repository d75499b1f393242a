"""From bytes to tensors and from samples to a batch.

The bytes of a batch are received into one buffer, sample beside sample. So a batch of equally long samples
*is* its own stacked tensor, and ``collate`` only has to see that. In a DataLoader's worker the buffer is
shared memory, which crosses to the trainer without a copy, as what default_collate makes there does; in the
main process of a machine with CUDA it is pinned. Module-level functions only, for spawned workers.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from shadeproxy_sdk.bulk import parts
from shadeproxy_sdk.client import Client
from shadeproxy_sdk.landing import Data
from shadeproxy_sdk.manifest import Manifest


def as_tensor(data: Data) -> Tensor:
    """The bytes as u8[len(data)], writable, of its own.

    ``S3Dataset(decode=as_tensor)`` does not call it for samples that lie in the batch's buffer: those are
    views of that.
    """
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


def fetch_tensors(client: Client, manifest: Manifest, ids: Sequence[int]) -> list[Tensor]:
    """The samples as u8 tensors, views of one buffer as far as lengths are known. Raises as Client.fetch."""
    tensors: list[Tensor] = []
    for part in parts(ids):
        buffers: list[Tensor] = []

        def allocate(length_bytes: int, buffers: list[Tensor] = buffers) -> memoryview:
            buffers.append(_buffer(length_bytes))
            return buffers[-1].numpy().data

        landing = client.fetch(manifest, part, allocate)
        samples = landing.finish()
        lengths = [max(length, 0) for length in landing.lengths]
        slots = torch.split(buffers[-1], lengths) if buffers else ()
        tensors += [
            slots[position] if landing.in_slot(position) else as_tensor(data)
            for position, data in enumerate(samples)
        ]
    return tensors


def collate(samples: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """``(*values, id)`` samples as ``(*batched values, ids)``.

    Tensors of one shape that follow each other in memory, as those of ``as_tensor`` do, are batched without
    a copy; other values as torch's default_collate does; ids become int64 (b,).
    """
    *columns, ids = zip(*samples, strict=True)
    return (*map(_batch, columns), torch.tensor(ids, dtype=torch.int64))


def _batch(column: Sequence[Any]) -> Any:
    if isinstance(column[0], np.ndarray):
        # Arrays made by np.frombuffer are read-only, of which default_collate warns although it copies.
        return torch.from_numpy(np.stack(column))
    if isinstance(column[0], Tensor) and _follow(column):
        first = column[0]
        return first.as_strided((len(column), *first.shape), (first.numel(), *first.stride()))
    return default_collate(list(column))


def _follow(column: Sequence[Any]) -> bool:
    """Whether the tensors are alike and the memory of each begins where the one before ends."""
    first = column[0]
    size = first.nbytes
    if not size or not first.is_contiguous() or first.device.type != "cpu" or first.requires_grad:
        return False
    shape, dtype, address = first.shape, first.dtype, first.data_ptr()
    storage = first.untyped_storage()
    # Live storages do not overlap, so what lies within the first one's bytes is a view of it.
    if address + size * len(column) > storage.data_ptr() + storage.nbytes():
        return False
    for tensor in column:
        if (
            not isinstance(tensor, Tensor)
            or tensor.data_ptr() != address
            or tensor.shape != shape
            or tensor.dtype != dtype
            or not tensor.is_contiguous()
        ):
            return False
        address += size
    return True


def _buffer(length_bytes: int) -> Tensor:
    if get_worker_info() is not None:
        # As torch's default_collate: what lies in shared memory is not copied on its way to the trainer.
        shared = torch.UntypedStorage._new_shared(length_bytes)  # type: ignore[no-untyped-call]  # noqa: SLF001
        return torch.empty(0, dtype=torch.uint8).set_(shared)
    if _has_cuda():
        return torch.empty(length_bytes, dtype=torch.uint8, pin_memory=True)
    return torch.from_numpy(np.empty(length_bytes, np.uint8))


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()
