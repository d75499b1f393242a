"""Delegated writes: the process that fetched a page writes its body to the tier. This module is the
coordinator's half.

Laws: only the coordinator decides on the place, and only it writes the header, after the body. So a record
never has a header before its body, and a page that was dropped meanwhile cannot be read. A place is released
only when the writing process has written the body or has ended: until then it may still write there.
"""

import asyncio

from shadeproxy.core.delegated_body import WrittenBody
from shadeproxy.core.errors import TierError
from shadeproxy.engine.storage.transfers import NewPage, Transfers, Write
from shadeproxy.tiers.base import Location


class DelegatedWrites(Transfers):
    """Moves pages as ``Transfers`` does, and lets other processes write bodies to tiers in memory
    (``NewPage.writer``).
    """

    def delegate(self, slot: int, location: Location, record_bytes: int, new: NewPage) -> bool:
        """Let another process write a new page of the first tier. Return False if the other process cannot.

        The slot leaves the tier's members until the body is written. Then ``new.stored`` is called.
        """
        plan = Write(slot, object(), 0, location, record_bytes, new.header, new.body)
        if not self._delegate(plan, new):
            return False
        self._unplaced[slot] = plan.token
        self._residents.abandon(slot, 0)
        return True

    def begin_now(self, plan: Write, new: NewPage) -> bool | None:
        """See ``Transfers.begin_now``."""
        return None if self._delegate(plan, new) else super().begin_now(plan, new)

    def _delegate(self, plan: Write, new: NewPage) -> bool:
        assert new.writer is not None, "asked for before"
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def written(body: WrittenBody | None) -> None:
            self._tasks.discard(over)
            over.set_result(True)
            # This process still has the bytes. If the other process failed to write them, write them here.
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
