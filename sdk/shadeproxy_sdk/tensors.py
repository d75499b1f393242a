"""Makes tensors from the bytes of samples, and batches from samples.

The bytes of a batch are received into one buffer, sample beside sample. If its samples are equally long, the
buffer already *is* the stacked tensor of the batch, and ``collate`` only has to detect that. In a
DataLoader's worker the buffer is shared memory, which reaches the training process without a copy, like the
output of default_collate in a worker. In the main process of a machine with CUDA the buffer is pinned memory.
Functions are at module level, because spawned workers must be able to import them.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from shadeproxy_sdk.batch_buffer import BatchBuffer, Data
from shadeproxy_sdk.bulk import parts
from shadeproxy_sdk.client import Client
from shadeproxy_sdk.manifest import Manifest

_MARK = "_shade_batch"
"""Attribute of the storages that hold one batch, and nothing else. Torch keeps the attributes of a storage as
long as any tensor uses it.
"""


def as_tensor(data: Data) -> Tensor:
    """Return a writable tensor u8[len(data)] with a copy of the bytes.

    ``S3Dataset(decode=as_tensor)`` calls this only for samples that do not lie in the batch's buffer. Samples
    in the buffer become views of it, without a copy.
    """
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


class Stacked(Sequence[tuple[Tensor, int]]):
    """Pairs ``(sample, id)`` whose samples are the rows of ``values``, u8[b, length]. The tensor of a single
    sample is made only when the caller asks for it, because making 256 of them takes as long as copying 2 MB.
    """

    def __init__(self, values: Tensor, ids: Sequence[int]) -> None:
        self.values = values
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, int]: ...
    @overload
    def __getitem__(self, index: slice) -> "Stacked": ...
    def __getitem__(self, index: int | slice) -> "tuple[Tensor, int] | Stacked":
        if isinstance(index, slice):
            return Stacked(self.values[index], self.ids[index])
        return self.values[index], self.ids[index]

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return zip(self.values, self.ids, strict=True)


def fetch_samples(
    client: Client, manifest: Manifest, ids: Sequence[int]
) -> Stacked | list[tuple[Tensor, int]]:
    """Return samples as u8 tensors with their ids.

    Samples of known length are views of one buffer. If all samples have the same length, they are the rows of
    that buffer. Raises like ``Client.fetch``.
    """
    found = [_fetch(client, manifest, part) for part in parts(ids)]
    if len(found) == 1:
        batch, buffer = found[0]
        length = batch.stacked_bytes()
        if length and buffer is not None:
            return Stacked(buffer.view(len(ids), length), ids)
    tensors = [tensor for batch, buffer in found for tensor in _tensors(batch, buffer)]
    return list(zip(tensors, ids, strict=True))


def _fetch(client: Client, manifest: Manifest, ids: Sequence[int]) -> tuple[BatchBuffer, Tensor | None]:
    """Return the batch with all samples, and the buffer that holds the samples of known length."""
    buffers: list[Tensor] = []

    def allocate(length_bytes: int) -> memoryview:
        buffers.append(_buffer(length_bytes))
        return buffers[-1].numpy().data

    batch = client.fetch(manifest, ids, allocate)
    batch.finish()
    return batch, buffers[-1] if buffers else None


def _tensors(batch: BatchBuffer, buffer: Tensor | None) -> list[Tensor]:
    lengths = [max(length, 0) for length in batch.lengths]
    slots = () if buffer is None else torch.split(buffer, lengths)
    return [
        slots[position] if batch.in_slot(position) else as_tensor(data)
        for position, data in enumerate(batch.finish())
    ]


def collate(samples: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Turn samples ``(*values, id)`` into a batch ``(*batched values, ids)``.

    Tensors of one shape that lie side by side in the memory of a batch, as those of ``as_tensor`` do, are
    batched without a copy. All other values are batched by torch's default_collate. The ids become int64
    (b,), in main memory also if ``torch.set_default_device`` names another device.
    """
    if isinstance(samples, Stacked):
        return samples.values, _ids(samples.ids)
    *columns, ids = zip(*samples, strict=True)
    return (*map(_batch, columns), _ids(ids))


def _ids(ids: Sequence[int]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def _batch(column: Sequence[Any]) -> Any:
    if isinstance(column[0], np.ndarray):
        # np.frombuffer makes read-only arrays. default_collate would warn about them, although it only copies
        # them.
        return torch.from_numpy(np.stack(column))
    if isinstance(column[0], Tensor) and _follow(column):
        first = column[0]
        return first.as_strided((len(column), *first.shape), (first.numel(), *first.stride()))
    return default_collate(list(column))


def _follow(column: Sequence[Any]) -> bool:
    """Return whether the tensors lie in the buffer of a batch, have one shape and type, and each begins where
    the one before it ends.

    Other tensors may lie side by side too, as the rows of a table that ``decode`` returns. The batch must be
    a copy of these: if the training loop changes it in place, the table must stay as it is.
    """
    first = column[0]
    size = first.nbytes
    if not size or not first.is_contiguous() or first.device.type != "cpu" or first.requires_grad:
        return False
    shape, dtype, address = first.shape, first.dtype, first.data_ptr()
    storage = first.untyped_storage()
    if not getattr(storage, _MARK, False):
        return False
    # The storages of living tensors never overlap. So a tensor whose memory lies within the first one's
    # storage is a view of it.
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
    buffer = _allocate(length_bytes)
    setattr(buffer.untyped_storage(), _MARK, True)
    return buffer


def _allocate(length_bytes: int) -> Tensor:
    if get_worker_info() is not None:
        # Shared memory reaches the training process without a copy, as with torch's default_collate.
        shared = torch.UntypedStorage._new_shared(length_bytes)  # type: ignore[no-untyped-call]  # noqa: SLF001
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(shared)
    if _has_cuda():
        return torch.empty(length_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)
    return torch.from_numpy(np.empty(length_bytes, np.uint8))


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()
