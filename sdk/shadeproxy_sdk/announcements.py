"""Keeps the orders that this rank announces, and notes which pieces of them must still be sent, or sent
again.

This module does no I/O, and any thread may call it. Only the latest order of an epoch is sent. When the next
epoch begins, the order of the past epoch is dropped, sent or not. Until then the order is kept even if the
proxy has it, because a proxy that forgets the job needs the order again.
"""

import logging
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.fork_lock import ForkLock

_LOG = logging.getLogger("shadeproxy_sdk")
_IDS_PER_PIECE = 262_144
"""Most ids in one piece (1 MiB), so that a piece can be sent within one timeout even over a slow line."""


class Piece(NamedTuple):
    """A part of an order. ``ids``: u32 (k,), the samples that this rank reads in ``epoch`` from position
    ``offset`` on.
    """

    epoch: int
    offset: int
    ids: NDArray[np.uint32]


class Announcements:
    """The orders by epoch, and how many ids of each order the proxy has."""

    def __init__(self, ids_per_piece: int = _IDS_PER_PIECE) -> None:
        self._ids_per_piece = ids_per_piece
        self._lock = ForkLock()
        self._orders: dict[int, NDArray[np.uint32]] = {}
        self._arrived: dict[int, int] = {}
        self._restarted: set[int] = set()
        self._told: set[int] = set()

    def put(self, epoch: Any, order: NDArray[np.uint32]) -> bool:
        """Set the order of ``epoch``. Return False, and change nothing, if ``order`` is the same array as
        before, or ``epoch`` is no whole number.
        """
        if not isinstance(epoch, Integral):
            _LOG.warning("An order was not announced: epoch %r is no whole number", epoch)
            return False
        epoch = int(epoch)
        with self._lock:
            if self._orders.get(epoch) is order:
                return False
            self._orders[epoch] = order
            self._arrived.pop(epoch, None)
            return True

    def begin(self, epoch: int) -> None:
        """Begin ``epoch``, and drop the orders of earlier epochs."""
        with self._lock:
            for past in [known for known in self._orders if known < epoch]:
                self._drop(past)
            # The proxy may still have the order of the previous epoch: it ends that epoch only when it sees
            # reads of this one.
            self._told = {known for known in self._told if known >= epoch - 1}

    def due(self) -> Piece | None:
        """Return the next piece of the earliest epoch whose order the proxy does not have in full; None when
        the proxy has all orders.
        """
        with self._lock:
            for epoch in sorted(self._orders):
                order, offset = self._orders[epoch], self._arrived.get(epoch, 0)
                if offset < order.size:
                    return Piece(epoch, offset, order[offset : offset + self._ids_per_piece])
        return None

    def arrived(self, piece: Piece) -> None:
        """Note that the proxy accepted ``piece``, so that it is not sent again."""
        with self._lock:
            order = self._orders.get(piece.epoch)
            if order is not None and np.may_share_memory(order, piece.ids):
                self._arrived[piece.epoch] = piece.offset + piece.ids.size
            self._told.add(piece.epoch)

    def told(self) -> list[int]:
        """Return the epochs of which the proxy may still have an order from this rank. The rank withdraws
        these orders when it stops.
        """
        with self._lock:
            return sorted(self._told)

    def withdrawn(self, epoch: int) -> None:
        """Note that the proxy no longer has an order of ``epoch``."""
        with self._lock:
            self._told.discard(epoch)

    def refused(self, piece: Piece) -> None:
        """Note that the proxy refused ``piece``. The proxy may have lost earlier pieces, so after the first
        refusal in an epoch the order is sent again from its first piece on. After the second refusal, the
        epoch is no longer announced.
        """
        with self._lock:
            if piece.offset and piece.epoch not in self._restarted:
                self._restarted.add(piece.epoch)
                self._arrived[piece.epoch] = 0
            else:
                self._drop(piece.epoch)

    def again(self) -> None:
        """Mark every order as unsent, because the proxy has forgotten the job and its orders."""
        with self._lock:
            self._arrived.clear()
            self._restarted.clear()

    def _drop(self, epoch: int) -> None:
        self._orders.pop(epoch, None)
        self._arrived.pop(epoch, None)
        self._restarted.discard(epoch)
