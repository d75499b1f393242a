"""Views of the bodies of resident pages. The body of a page on a disk is first read and checked.

Laws: the event loop never waits for a device here. A damaged page is dropped and counted.
"""

from collections.abc import Coroutine, Sequence

from shadeproxy.core.errors import TierError
from shadeproxy.engine.base import PageHandle
from shadeproxy.engine.index.residents import NO_TIER, Residents
from shadeproxy.engine.storage.disk_page import DiskPage
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.record_reader import PagePosition, RecordReader
from shadeproxy.engine.storage.transfers import Transfers


class PageViews:
    """Views of the pages of ``residents``, which lie in ``media``. ``places``: reads their records.
    ``transfers``: drops damaged pages.
    """

    def __init__(
        self, residents: Residents, media: Sequence[Medium], *, places: RecordReader, transfers: Transfers
    ) -> None:
        self._residents = residents
        self._media = media
        self._places = places
        self._transfers = transfers

    def view(self, slot: int) -> Coroutine[None, None, memoryview | DiskPage]:
        """Return the body of the page that has the slot now, pinned while a view of it lives. Raises
        TierError if the record has left its tier, or is damaged.
        """
        # A task may begin only when the slot has another page already, so note the page now.
        return self._view(slot, self._places.of(slot))

    async def load_again(self, handle: PageHandle) -> None:
        """Read a page, whose bytes were pinned by ``handle``, into the page cache again, and check it. Raises
        TierError as ``view``, and also if the page has moved to another place.
        """
        slot = handle.slot
        place = self._places.of(slot)
        if (
            place.tier == NO_TIER
            or place.location != handle.location
            or self._media[place.tier].tier is not handle.tier
        ):
            raise TierError("the page left its tier while it was sent")
        await self._view(slot, place)

    async def _view(self, slot: int, place: PagePosition) -> memoryview | DiskPage:
        medium = self._media[place.tier]
        try:
            self._places.require(slot, place)
            if self._places.must_load(slot):
                header = await self._places.load(place)
                self._places.require(slot, place)
                self._residents.prove(slot, header)
                self._residents.trust(slot)
            view = medium.tier.pin(place.location)
        except TierError as error:
            if self._places.holds(slot, place):
                self._transfers.note_failure(medium.tier, "read", error)
                self._transfers.drop(slot, "damaged")
            raise
        return view if medium.load is None else DiskPage(view, medium.tier, place.location)
