"""Admission of pages that came from the origin, many at a time.

Laws: plain defs; every page is answered exactly once, whatever raises: before ``insert_many`` returns, or by
the task that writes it.
"""

import asyncio
from collections.abc import Callable, Sequence

from shadeproxy.core.errors import TierError
from shadeproxy.core.identity import etag_hash, object_hash
from shadeproxy.engine.index.prefix_groups import PrefixGroups
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.placement.pins import Pins
from shadeproxy.engine.placement.placement import Placement
from shadeproxy.engine.storage.transfers import Medium, NewPage, Transfers


class PageAdmission:
    """Gives pages slots in ``residents``, and places in the tiers by ``transfers``."""

    def __init__(
        self,
        residents: Residents,
        media: Sequence[Medium],
        groups: PrefixGroups,
        *,
        pins: Pins,
        placement: Placement,
        transfers: Transfers,
        disown: Callable[[int], None],
    ) -> None:
        """``disown``: called with the hash of an object of which a new version came."""
        self._residents = residents
        self._media = media
        self._groups = groups
        self._pins = pins
        self._placement = placement
        self._transfers = transfers
        self._disown = disown

    def insert_many(self, pages: Sequence[NewPage]) -> None:
        """Store the pages that earn a place; see ``PageCache.insert_many``."""
        failures: list[Exception] = []
        for number, new in enumerate(pages):
            try:
                stored = self._insert(new)
            except BaseException:
                for left in pages[number:]:
                    _answer(left, False, failures)
                raise
            if stored is not None:
                _answer(new, stored, failures)
        if failures:
            raise failures[0]

    def _insert(self, new: NewPage) -> bool | None:
        """Store one page as ``Transfers.store`` does."""
        page, ref = new.page, new.page.ref
        try:
            record_bytes = self._media[0].tier.record_bytes(page, new.meta, len(new.body))
        except TierError as error:  # no record can hold that header
            self._transfers.note_failure(self._media[0].tier, "encode", error)
            return False
        hashed, version = object_hash(ref), etag_hash(page.etag)
        occupant = self._residents.occupant(hashed, page.number)
        if occupant is not None:
            if self._residents.etag[occupant] != version:
                self._disown(hashed)
            self._transfers.drop(occupant, "replaced")
        slot = self._residents.add(
            hashed,
            page.number,
            etag=version,
            body_bytes=len(new.body),
            record_bytes=record_bytes,
            group=self._groups.of(ref),
            tick=self._placement.tick,
            validated_s=new.validated_s,
            pinned=self._pins.covers(ref),
        )
        self._placement.enter(slot)
        return self._transfers.store(slot, new)


def _answer(new: NewPage, stored: bool, failures: list[Exception]) -> None:
    """Tell the page's reader; one that fails must not keep others from their answer."""
    try:
        new.stored(stored)
    except Exception as error:  # noqa: BLE001 - raised again when all have their answer
        failures.append(error)


def answer_waiter(waiter: asyncio.Future[bool], stored: bool) -> None:
    """Pass an answer on to a waiter that may have left."""
    if not waiter.done():
        waiter.set_result(stored)
