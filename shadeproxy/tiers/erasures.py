"""Keeps track of erasures that failed or were not flushed, and of the tombstones that replace them.

An erasure makes the record of a dropped page unreadable. Until the erasure is on the medium, a tombstone must
name the page's object, so that a restart ignores the record.

Laws: a write to an object is acknowledged only if a tombstone names the object, or every erasure of the tier
is as durable as the medium itself (tmpfs), or the whole tier is in doubt. Otherwise the write is refused, and
``unmarked`` gives the reason. Tombstones are dropped when every earlier erasure is on the medium. A failed
flush puts the tier in doubt, because even a second flush does not tell which erasures were lost. Only one
``settle`` runs at a time, and ``finish`` waits for it, so the outcome of every flush is known.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial

from shadeproxy.tiers.medium import is_tmpfs
from shadeproxy.tiers.segment import Segment
from shadeproxy.tiers.session import Session

_logger = logging.getLogger(__name__)


class Erasures:
    """The erasures of tier ``name``. ``segments`` returns all segments of the tier; ``note`` is called with
    each failure; ``submit`` runs I/O in the order of the store's decisions. Any thread may use ``owed`` and
    ``settle``.
    """

    def __init__(
        self,
        name: str,
        segments: Callable[[], list[Segment]],
        *,
        note: Callable[[OSError], None],
        submit: Callable[[Callable[[], None]], object],
    ) -> None:
        self._name = name
        self._segments = segments
        self._note = note
        self._submit = submit
        self._session: Session | None = None
        self._lasting = False
        self._lock = threading.Lock()
        self._finished = False
        self._unmarked: dict[int, str] = {}
        self._doubt_refused = ""  # Why ``doubt`` failed; "" if it did not.

    def open(self, session: Session) -> None:
        """Begin to keep track of the erasures of ``session``. Raises OSError."""
        self._session, self._finished = session, False
        self._lasting = is_tmpfs(session.directory)

    # ------------------------------------------------------------------ facts

    @property
    def names_all(self) -> bool:
        """True if ``remember`` adds a tombstone for every object: a tier without segments needs none, and one
        on a tmpfs hardly any.
        """
        return not self._lasting and bool(self._segments())

    @property
    def owed(self) -> int:
        """Number of records whose erasure failed and will be tried again."""
        return sum(segment.owed for segment in self._segments())

    @property
    def tombstones(self) -> int:
        """Number of objects whose erasures may not be on the medium yet."""
        return 0 if self._session is None else len(self._session.tombstones)

    @property
    def crowded(self) -> bool:
        """True if ``settle`` should run now, before there is no room for the next tombstone."""
        return self._session is not None and self._session.tombstones.crowded

    @property
    def in_doubt(self) -> bool:
        """True if the next start must check every page with the origin."""
        return self._session is not None and self._session.unflushed

    @property
    def owes(self) -> bool:
        """True if an erasure or a mark failed and must be tried again."""
        return bool(self._unmarked or self._doubt_refused or self.owed)

    def unmarked(self, object_hashes: Iterable[int]) -> str:
        """Return the reason why records of one of these objects may come back after a restart, or ""."""
        if self._doubt_refused:
            return self._doubt_refused
        # The writer thread may drop a reason meanwhile, so look each one up only once.
        return next(filter(None, map(self._unmarked.get, object_hashes)), "")

    @property
    def any_unmarked(self) -> str:
        """Reason why records of some object may come back after a restart, or ""."""
        return self._doubt_refused or next(iter(list(self._unmarked.values())), "")

    # ------------------------------------------------------------------ marking

    def remember(self, object_hash: int, *, pending: bool) -> bool:
        """Add a tombstone for an object, so that its records are ignored after a restart.

        ``pending``: pending segments may hold records of the object. Return True if the tombstone was given
        to ``submit``, because writing the tombstone may wait for a disk.
        """
        if self._session is None or (self._lasting and not pending):
            return False
        if self._session.tombstones.on_tmpfs:
            self._add(object_hash)
            return False
        self._submit(partial(self._add, object_hash))
        return True

    def _add(self, object_hash: int) -> None:
        assert self._session is not None, "open first"
        try:
            self._session.tombstones.add(object_hash)
        except OSError as error:
            self._unmarked[object_hash] = self._refusal(error)
            self._note(error)
        else:
            self._unmarked.pop(object_hash, None)

    def erase(self, segment: Segment, *offsets: int) -> None:
        """Zero the headers of records. Raises OSError; the headers that are left are then tried again
        later.
        """
        try:
            segment.erase(*offsets)
        except OSError:
            if self._lasting:
                # On tmpfs ``remember`` adds no tombstone for this record, so only doubt can protect readers.
                self.doubt()
            raise

    def doubt(self) -> None:
        """Put the tier in doubt: the next start checks every page with the origin."""
        if self._session is None:
            return
        tombstones = self._session.tombstones
        if tombstones.doubted and not tombstones.doubt_ends:
            return
        try:
            tombstones.doubt_all()
        except OSError as error:
            self._doubt_refused = self._refusal(error)
            self._note(error)
        else:
            self._doubt_refused = ""
            _logger.warning("tier %s: erasures were lost: the next start checks every page", self._name)

    def _refusal(self, error: OSError) -> str:
        return (
            f"the {self._name} tier cannot record that its pages of this object are old ({error.strerror}), "
            "and could serve them after a restart; nothing was written"
        )

    # ------------------------------------------------------------------ settling

    @property
    def unsettled(self) -> bool:
        """True if there is work for ``settle``."""
        return bool(self.tombstones or self.owes)

    def turn(self) -> int:
        """Let new tombstones go to the other half of their file, if it is empty. Return a token for the half
        that gets no more names, which ``settle`` needs; see ``Tombstones.turn``.
        """
        return 0 if self._session is None else self._session.tombstones.turn()

    def retry(self) -> None:
        """Repeat the erasures and marks that failed (I/O, through ``submit``)."""
        for segment in self._segments():
            try:
                segment.retry()
            except OSError as error:
                self._note(error)
        for object_hash in list(self._unmarked):
            self._add(object_hash)
        if self._doubt_refused:
            self.doubt()

    def settle(self, turned: int) -> bool:
        """Flush every erasure to the medium, then drop the tombstones of the half for which ``turn`` returned
        ``turned``. Return whether both succeeded (I/O, any thread).
        """
        with self._lock:
            return not self._finished and self._settle(turned)

    def _settle(self, turned: int) -> bool:
        if self._session is None or self.owed or not self._flush():
            return False
        try:
            self._session.tombstones.forget(turned)
        except OSError as error:
            self._note(error)
            return False
        return True

    def _flush(self) -> bool:
        try:
            for segment in self._segments():
                segment.flush()
        except OSError as error:
            self._note(error)
            self.doubt()
            return False
        return True

    def finish(self, *, pending: bool) -> bool:
        """End the session (I/O). ``pending``: pending segments are left, so the tombstones stay.

        Return True if no erasure is outstanding: the next start may then trust every page.
        """
        with self._lock:
            self._finished = True
            if self._session is None:
                return False
            self.retry()
            if pending:
                return self._flush() and not self.unsettled
            return self._settle(self.turn()) and self._settle(self.turn()) and not self.unsettled
