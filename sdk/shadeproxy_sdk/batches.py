"""From samples to a batch. Module-level functions only, so that spawned workers can import them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate


def collate(samples: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """``(*values, id)`` samples as ``(*batched values, ids)``.

    Values are batched as torch's default_collate does, ids become int64 (b,).
    """
    *columns, ids = zip(*samples, strict=True)
    return (*map(_batch, columns), torch.tensor(ids, dtype=torch.int64))


def _batch(column: Sequence[Any]) -> Any:
    if isinstance(column[0], np.ndarray):
        # Arrays made by np.frombuffer are read-only, of which default_collate warns although it copies.
        return torch.from_numpy(np.stack(column))
    return default_collate(list(column))
