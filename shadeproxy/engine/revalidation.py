"""Checking cached versions against the origin: one check per object at a time, many by one listing.

A reader that must know waits for ``check``. A reader that may be answered from the cache leaves the
object with ``check_soon``; a background task then settles what has gathered, by one HEAD each when few,
or by listing (1,000 ETags a request) when many keys of one bucket lie close together.
"""

import asyncio
from collections.abc import Callable

import structlog

from shadeproxy.core.errors import OriginAnswer, OriginError
from shadeproxy.core.types import SHARED, ListEntry, ObjectMeta, ObjectRef, Upstream
from shadeproxy.origin.base import Origin

_log = structlog.get_logger(__name__)
_LIST_FROM = 8  # stale keys of one bucket from which a listing is cheaper than HEADs
_GATHER_S = 0.05
_MAX_PENDING = 100_000


class Revalidator:
    """``settle(ref, meta)`` is called with what the origin has now: metadata, or None for "gone".

    ``confirm(ref, entry)`` is called for a listed object; it answers False when the version differs, and
    the object is then checked by HEAD.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        settle: Callable[[ObjectRef, ObjectMeta | None], None],
        confirm: Callable[[ObjectRef, ListEntry], bool],
    ) -> None:
        self._origin = origin
        self._settle = settle
        self._confirm = confirm
        self._checks: dict[tuple[ObjectRef, Upstream], asyncio.Task[ObjectMeta]] = {}
        self._pending: dict[ObjectRef, Upstream] = {}  # a reader of the object, to ask as
        self._worker: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return not self._checks and not self._pending and (self._worker is None or self._worker.done())

    async def check(self, ref: ObjectRef, upstream: Upstream = SHARED) -> ObjectMeta:
        """Current metadata by HEAD; concurrent callers share one request. Raises what ``head`` raises."""
        task = self._checks.get((ref, upstream))
        if task is None:
            task = asyncio.create_task(self._head(ref, upstream), name=f"head {ref}")
            self._checks[ref, upstream] = task
            task.add_done_callback(lambda done: self._checked((ref, upstream), done))
        # Shielded: a caller that hangs up must not fail the others.
        return await asyncio.shield(task)

    def void(self, ref: ObjectRef) -> None:
        """A write touched ``ref`` (no key: its bucket): checks that are under way say nothing any more."""
        touched = [key for key in self._checks if key[0].bucket == ref.bucket and ref.key in ("", key[0].key)]
        for key in touched:
            del self._checks[key]

    def check_soon(self, ref: ObjectRef, upstream: Upstream = SHARED) -> None:
        """Check in the background; the cached version answers meanwhile."""
        if len(self._pending) < _MAX_PENDING:
            self._pending[ref] = upstream
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="revalidate")

    async def aclose(self) -> None:
        tasks = [task for task in (self._worker, *self._checks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pending.clear()

    async def _head(self, ref: ObjectRef, upstream: Upstream) -> ObjectMeta:
        task = asyncio.current_task()
        try:
            meta = await self._origin.head(ref, upstream=upstream)
        except OriginAnswer as answer:
            if answer.status == 404 and self._checks.get((ref, upstream)) is task:
                self._settle(ref, None)
            raise
        if self._checks.get((ref, upstream)) is task:
            self._settle(ref, meta)
        return meta

    def _checked(self, key: tuple[ObjectRef, Upstream], task: asyncio.Task[ObjectMeta]) -> None:
        if self._checks.get(key) is task:
            del self._checks[key]
        if not task.cancelled():
            task.exception()  # every waiter may have hung up: the error is then nobody's

    async def _work(self) -> None:
        await asyncio.sleep(_GATHER_S)
        while self._pending:
            bucket = next(iter(self._pending)).bucket
            keys = sorted((ref.key for ref in self._pending if ref.bucket == bucket), key=str.encode)
            try:
                doubtful = keys[:_LIST_FROM]
                if len(keys) >= _LIST_FROM:
                    doubtful = await self._list(bucket, keys)
                for key in doubtful:
                    upstream = self._pending.pop(ObjectRef(bucket, key), SHARED)
                    await self._check_quietly(ObjectRef(bucket, key), upstream)
            except OriginError as error:
                # The cached versions stay as readable as their rule allows; the next read asks again.
                _log.warning("revalidation failed", bucket=bucket, error=str(error))
                for key in keys:
                    self._pending.pop(ObjectRef(bucket, key), None)

    async def _check_quietly(self, ref: ObjectRef, upstream: Upstream) -> None:
        try:
            await self.check(ref, upstream)
        except OriginAnswer as answer:
            _log.debug("revalidation answered", ref=str(ref), status=answer.status)

    async def _list(self, bucket: str, keys: list[str]) -> list[str]:
        """Confirm what one listing from the first key can; the keys that need a HEAD.

        ``keys`` is sorted. Keys beyond the reach of the listing stay pending; the first never does, so
        every round makes progress.
        """
        first = keys[0]
        prefix = first[: first.rfind("/") + 1]
        page = await self._origin.list_objects(
            bucket,
            prefix,
            start_after=_just_before(first),
            upstream=self._pending[ObjectRef(bucket, first)],
        )
        listed = {entry.key: entry for entry in page.entries}
        reach = page.entries[-1].key.encode() if page.entries and page.truncated else None
        doubtful = []
        for key in keys:
            within = key.startswith(prefix) and (reach is None or key.encode() <= reach)
            if not within and key != first:
                continue
            entry = listed.get(key)
            if entry is not None and self._confirm(ObjectRef(bucket, key), entry):
                self._pending.pop(ObjectRef(bucket, key), None)
            else:
                doubtful.append(key)
        return doubtful


def _just_before(key: str) -> str:
    """A string that sorts before ``key`` with hardly a key between: ``start_after`` is exclusive."""
    last = ord(key[-1]) - 1
    if last <= 0x20 or 0xD800 <= last <= 0xDFFF:
        return key[:-1]
    return key[:-1] + chr(last) + "\uffef"
