"""Delegated writes: the process that fetched a page writes the page's body to the tier. This module is the
half of the coordinator.

Laws: only the coordinator decides on the place and writes the header, and it writes the header after the
body. So a record never has a header before its body, and a page that was dropped meanwhile gets no header. A
place is released only when the other process has written the body or has ended, because until then it may
still write there.
"""

import asyncio

from shadeproxy.core.delegated_body import WrittenBody
from shadeproxy.core.errors import TierError
from shadeproxy.engine.storage.transfers import NewPage, Transfers, Write
from shadeproxy.tiers.base import Location


class DelegatedWrites(Transfers):
    """Moves pages as ``Transfers`` does. Besides, other processes may write bodies to tiers in memory
    (``NewPage.writer``).
    """

    def delegate(self, slot: int, location: Location, record_bytes: int, new: NewPage) -> bool:
        """Let another process write the body of a new page of the first tier. Return False if that process
        cannot.

        The slot is no member of the tier until the body is written. Then ``new.stored`` is called.
        """
        plan = Write(slot, object(), 0, location, record_bytes, new.header, new.body)
        if not self._delegate(plan, new):
            return False
        self._unplaced[slot] = plan.token
        self._residents.abandon(slot, 0)
        return True

    def begin_now(self, plan: Write, new: NewPage) -> bool | None:
        """Let another process write a page, or write it here; see ``Transfers.begin_now``."""
        return None if self._delegate(plan, new) else super().begin_now(plan, new)

    def _delegate(self, plan: Write, new: NewPage) -> bool:
        assert new.writer is not None, "asked for before"
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def written(body: WrittenBody | None) -> None:
            self._tasks.discard(over)
            over.set_result(True)
            # If the other process did not write the body, write it here: this process still has the bytes.
            new.stored(self._finish(plan, new, new.body if body is None else body))

        try:
            place = self._media[plan.index].tier.body_place(plan.location, plan.header)
        except TierError:
            return False
        if not new.writer.write_body(place, written):
            return False
        self._tasks.add(over)
        return True

    def _finish(self, plan: Write, new: NewPage, body: memoryview | WrittenBody) -> bool:
        """Write the header, unless the page was dropped meanwhile. Return whether the page is resident."""
        stored = False
        try:
            if self._unplaced.get(plan.slot) is plan.token:
                stored = self.write_now(plan.index, plan.location, plan.header, body, new.wanted)
        finally:
            stored = self._settle(plan, stored=stored)
        return stored
