"""The orders that this rank has announced, or is about to: which piece goes next, and which must go again.

No I/O, any thread. An epoch's latest order counts; orders of past epochs are dropped, sent or not. Orders
are kept until their epoch is over, because a proxy that forgot the job must be told them again.
"""

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_IDS_PER_PIECE = 262_144
"""One MiB: a piece is sent within one timeout over a slow line."""


class Piece(NamedTuple):
    """``ids``: u32 (k,), what ``epoch`` reads from position ``offset`` on."""

    epoch: int
    offset: int
    ids: NDArray[np.uint32]


class Announcements:
    """Orders by epoch, and how many ids of each have arrived."""

    def __init__(self, ids_per_piece: int = _IDS_PER_PIECE) -> None:
        self._ids_per_piece = ids_per_piece
        self._lock = threading.Lock()
        self._orders: dict[int, NDArray[np.uint32]] = {}
        self._arrived: dict[int, int] = {}
        self._restarted: set[int] = set()
        self._told: set[int] = set()

    def put(self, epoch: int, order: NDArray[np.uint32]) -> bool:
        """``epoch`` reads ``order``. Whether that is new: the same array again changes nothing."""
        with self._lock:
            if self._orders.get(epoch) is order:
                return False
            self._orders[epoch] = order
            self._arrived.pop(epoch, None)
            return True

    def begin(self, epoch: int) -> None:
        """``epoch`` begins: earlier ones are over."""
        with self._lock:
            for past in [known for known in self._orders if known < epoch]:
                self._drop(past)
            # To the proxy the one before is over when reads of this one have come.
            self._told = {known for known in self._told if known >= epoch - 1}

    def due(self) -> Piece | None:
        """What to send next, the nearest epoch first; None when all has arrived."""
        with self._lock:
            for epoch in sorted(self._orders):
                order, offset = self._orders[epoch], self._arrived.get(epoch, 0)
                if offset < order.size:
                    return Piece(epoch, offset, order[offset : offset + self._ids_per_piece])
        return None

    def arrived(self, piece: Piece) -> None:
        """The proxy took ``piece``."""
        with self._lock:
            order = self._orders.get(piece.epoch)
            if order is not None and np.may_share_memory(order, piece.ids):
                self._arrived[piece.epoch] = piece.offset + piece.ids.size
            self._told.add(piece.epoch)

    def told(self) -> list[int]:
        """Epochs of which the proxy may still hold something, to be withdrawn by who reads no more."""
        with self._lock:
            return sorted(self._told)

    def withdrawn(self, epoch: int) -> None:
        """The proxy holds nothing of ``epoch``."""
        with self._lock:
            self._told.discard(epoch)

    def refused(self, piece: Piece) -> None:
        """The proxy will not take ``piece``. What follows others is tried once more from the beginning: the
        proxy may have lost those.
        """
        with self._lock:
            if piece.offset and piece.epoch not in self._restarted:
                self._restarted.add(piece.epoch)
                self._arrived[piece.epoch] = 0
            else:
                self._drop(piece.epoch)

    def again(self) -> None:
        """The proxy has forgotten the job: everything is due again."""
        with self._lock:
            self._arrived.clear()
            self._restarted.clear()

    def _drop(self, epoch: int) -> None:
        self._orders.pop(epoch, None)
        self._arrived.pop(epoch, None)
        self._restarted.discard(epoch)
