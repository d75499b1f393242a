"""Checks cached versions with the origin: one check per object at a time, or many objects by one listing.

A reader that needs the current version waits for ``check``. Readers share a check, unless their rule is
revalidate or another proxy may write the object: only a check that began after the read shows every write
(exact_checks.py). A reader that the cache may answer calls ``check_soon``, and a background task checks the
collected objects. A few objects are checked by one HEAD each. Many stale keys of one prefix are checked by
listing the prefix (1,000 ETags a request). A listing confirms every cached object that it names, so the next
reads of these objects need no check. ``check_listed`` lists a whole prefix, as at the beginning of a job's
epoch.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

import structlog

from shadeproxy.core.deadline import DEADLINE
from shadeproxy.core.errors import DeadlineExceeded, OriginAnswer, OriginError, Unidentified
from shadeproxy.core.memo import Memo
from shadeproxy.core.pace import TurnLimiter
from shadeproxy.core.types import SHARED, ListEntry, ObjectMeta, ObjectRef, Upstream
from shadeproxy.engine.base import Grant
from shadeproxy.engine.freshness.exact_checks import ExactChecks
from shadeproxy.engine.freshness.listings import (
    Listed,
    ListingAsked,
    PendingObjects,
    just_before,
    prefix_of,
    touches,
)
from shadeproxy.engine.freshness.namespaces import ONLY_OWN, Upstreams, upstream_in
from shadeproxy.engine.freshness.probe import probe_get
from shadeproxy.engine.ownership import Began, Ownership, Standing
from shadeproxy.origin.base import Origin

_log = structlog.get_logger(__name__)
_LIST_FROM = 8  # From this number of stale keys of one prefix on, a listing is cheaper than HEADs.
_AFTER_REFUSAL = 1000  # After a refused listing, this many keys are checked by HEAD first.
_GIVES_UP_AFTER = 3  # After this many failed HEADs in a row, the remaining checks are dropped.
_MOST_PREFIXES = 1024
_MOST_SWEEPS = 16
_BEAR_OUT = 3  # HEADs that must confirm a listing before the objects that it shows as changed are dropped.
_AT_ONCE = 64  # Entries compared before other tasks get their turn: half a millisecond.
_PACE_S = 0.1  # Pause between the listings of a whole prefix: no reader waits for them.
_GATHER_S = 0.05
_MAX_PENDING = 100_000


_Check = tuple[ObjectRef, Upstream, Grant, int]
"""A check of an object, by one client and for one right. The last field is 0 if readers share the check,
negative if they share it until it is sent (``ExactChecks.number``); otherwise no other check has it.
"""

_IS_CURRENT = (Listed.CURRENT, Listed.FRESH)


class Revalidator:
    """Checks versions of objects with the origin, and reports the results.

    ``settle(ref, meta, began)`` gets the origin's metadata (None if the object is gone) and the instant
    before the check. ``unidentified(ref)`` gets an object whose answer names no version. ``confirm(ref,
    entry, asked)`` gets an object of a listing. ``outdated(ref)`` gets a cached object of which a listing
    shows another version.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        settle: Callable[[ObjectRef, ObjectMeta | None, Began | None], None],
        confirm: Callable[[ObjectRef, ListEntry, ListingAsked], Listed],
        outdated: Callable[[ObjectRef], None],
        unidentified: Callable[[ObjectRef], None],
        now_s: Callable[[], float],
        upstreams: Upstreams = ONLY_OWN,
        ownership: Ownership | None = None,
    ) -> None:
        self._origin = origin
        self._ownership = ownership
        self._numbers = itertools.count(1)
        self._exact = ExactChecks()
        self._settled: Memo[ObjectRef, int] = Memo(1024)  # The latest check that counted.
        self._voided = 0
        self._settle = settle
        self._confirm = confirm
        self._outdated = outdated
        self._unidentified = unidentified
        self._now_s = now_s
        self._upstreams = upstreams
        self._checks: dict[_Check, asyncio.Task[ObjectMeta]] = {}
        self._pace = TurnLimiter()
        """Wakes a few waiting readers in each turn of the loop, because thousands may wait for one object."""
        self._pending = PendingObjects()
        # Here a prefix is an ``ObjectRef`` whose key is the prefix.
        self._asked_singly: Counter[ObjectRef] = Counter()
        self._refused: Counter[tuple[Upstream, ObjectRef]] = Counter()
        self._long: set[ObjectRef] = set()  # Prefixes with more keys than one listing has.
        self._failed_in_a_row = 0
        self._worker: asyncio.Task[None] | None = None
        self._sweeps: dict[ObjectRef, asyncio.Task[None]] = {}

    @property
    def idle(self) -> bool:
        worker_done = self._worker is None or self._worker.done()
        return worker_done and not (self._checks or self._pending or self._sweeps)

    async def check(
        self, ref: ObjectRef, upstream: Upstream = SHARED, grant: Grant = Grant.HEAD, *, exact: bool = False
    ) -> ObjectMeta:
        """Return the current metadata from the origin. A HEAD is sent, or a GET of one byte if the client's
        right to the bytes must be proven too. If this process owns the object, callers share a request, or
        until it is sent if ``exact``. Raises the errors of ``head``, and DeadlineExceeded when the caller's
        time is up.
        """
        deadline, ownership = DEADLINE.get(), self._ownership
        shared = ownership is None or ownership.standing(ref) is Standing.OWN
        while True:
            number = -self._exact.number((ref, upstream, grant)) if exact else 0
            check = ref, upstream, grant, number if shared else next(self._numbers)
            task = self._checks.get(check)
            joined = task is not None
            if task is None:
                task = self._start(check)
            # Do not await the task itself: a caller that hangs up, or is late, must not fail the others.
            done = self._pace.finished(task)
            try:
                await (done if deadline is None else deadline.bound(done))
                return task.result()
            except DeadlineExceeded:
                if (turn := self._pace.turn()) is not None:
                    await turn
                # A reader that joined a check late still has time for a request of its own.
                if not joined or deadline is None or deadline.left_s <= 0:
                    raise

    def _start(self, check: _Check) -> asyncio.Task[ObjectMeta]:
        began = None if self._ownership is None else self._ownership.begin()
        asking = self._ask(check, began) if check[3] >= 0 else self._ask_in_turn(check, began)
        task = asyncio.create_task(asking, name=f"{check[2].name} {check[0]}")
        self._checks[check] = task
        if check[3] < 0:
            self._exact.begin(check[:3])
        task.add_done_callback(lambda done: self._checked(check, done))
        return task

    def void(self, ref: ObjectRef) -> None:
        """Make running checks of ``ref`` void, because a write touched it. An empty key means all objects of
        the bucket.
        """
        touched = [check for check in self._checks if touches(ref, check[0])]
        for check in touched:
            del self._checks[check]

    def void_all(self) -> None:
        """Make running checks and listings void: none of them settles or confirms anything any more."""
        self._checks.clear()
        self._voided += 1

    def check_soon(self, ref: ObjectRef, upstream: Upstream = SHARED) -> None:
        """Check the version in the background. Until the check ends, the cached version answers."""
        if len(self._pending) < _MAX_PENDING:
            self._pending.add(ref, upstream)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="revalidate")

    def check_listed(self, prefix: ObjectRef, most_pages: int) -> None:
        """Check the cached objects of a prefix in the background, by at most ``most_pages`` listings."""
        if prefix in self._sweeps or len(self._sweeps) >= _MOST_SWEEPS:
            return
        task = asyncio.create_task(self._sweep(prefix, most_pages), name=f"list {prefix}")
        self._sweeps[prefix] = task
        task.add_done_callback(lambda _: self._sweeps.pop(prefix, None))

    async def aclose(self) -> None:
        running = (self._worker, *self._checks.values(), *self._sweeps.values())
        tasks = [task for task in running if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pending.clear()

    async def _ask_in_turn(self, check: _Check, began: Began | None) -> ObjectMeta:
        async with self._exact.sending(check[:3]):
            return await self._ask(check, began)

    async def _ask(self, check: _Check, began: Began | None) -> ObjectMeta:
        ref, upstream, grant, _ = check
        order = next(self._numbers)
        DEADLINE.set(None)  # Other callers may join the check, so it has a time limit of its own.
        try:
            if grant is Grant.GET:
                meta = await probe_get(self._origin, ref, upstream)
            else:
                meta = await self._origin.head(ref, upstream=upstream)
        except OriginAnswer as answer:
            if answer.status == 404 and self._counts(check, order):
                self._settle(ref, None, began)
            raise
        except Unidentified:
            if self._counts(check, order):
                self._unidentified(ref)
            raise
        if self._counts(check, order):
            self._settle(ref, meta, began)
        return meta

    def _counts(self, check: _Check, order: int) -> bool:
        """Return whether the running check counts: neither a write nor a later check made it void."""
        if is_last := order > (self._settled.get(check[0]) or 0):
            self._settled.put(check[0], order)
        return is_last and self._checks.get(check) is asyncio.current_task()

    def _checked(self, key: _Check, task: asyncio.Task[ObjectMeta]) -> None:
        if self._checks.get(key) is task:
            del self._checks[key]
        if key[3] < 0:
            self._exact.end(key[:3])
        if not task.cancelled():
            task.exception()  # Retrieve the error: if all callers are gone, asyncio would log it.

    async def _work(self) -> None:
        DEADLINE.set(None)
        await asyncio.sleep(_GATHER_S)
        while (turn := await self._pending.next_turn()) is not None:
            bucket, keys = turn
            self._failed_in_a_row = 0
            try:
                for prefix, together in groupby(keys, key=prefix_of):
                    await self._check_together(bucket.beside(prefix), list(together))
            except OriginError as error:
                # A failed check changes nothing: cached versions answer as long as their rule allows, and the
                # next read of each starts another check.
                _log.warning(
                    "revalidation failed", bucket=bucket.bucket, namespace=bucket.namespace, error=str(error)
                )
                await self._pending.drop(bucket, keys)
            except BaseException:
                for key in keys:
                    self._pending.pop(bucket.beside(key))
                raise

    async def _check_together(self, prefix: ObjectRef, keys: list[str]) -> None:
        """Check stale keys of one prefix. Raises OriginError when the origin fails repeatedly."""
        while keys:
            upstream = self._pending.get(prefix.beside(keys[0]))
            upstream = upstream or upstream_in(self._upstreams, prefix.namespace)
            if self._is_listed(upstream, prefix, len(keys)):
                keys = await self._list(upstream, prefix, keys)
            else:
                await self._ask_each(prefix, keys)
                return

    def _is_listed(self, upstream: Upstream, prefix: ObjectRef, count: int) -> bool:
        """Return whether to check ``count`` stale keys of a prefix by a listing. Keys of the prefix that were
        lately checked by HEAD are added to ``count``.
        """
        if len(self._asked_singly) + len(self._refused) + len(self._long) > _MOST_PREFIXES:
            for counts in (self._asked_singly, self._refused, self._long):
                counts.clear()
        if self._refused[upstream, prefix] > 0:
            self._refused[upstream, prefix] -= count
            return False
        if self._asked_singly[prefix] + count >= _LIST_FROM:
            return True
        self._asked_singly[prefix] += count
        return False

    async def _ask_each(self, bucket: ObjectRef, keys: Sequence[str], by: Upstream | None = None) -> None:
        """Send one HEAD for each key, with the credentials of ``by``, or else with those of a reader of the
        object. Raises OriginError when several HEADs fail in a row.
        """
        for key in keys:
            ref = bucket.beside(key)
            try:
                # A reader's credentials are known only while the object is pending. Later, use the proxy's.
                upstream = by or self._pending.pop(ref) or upstream_in(self._upstreams, ref.namespace)
                await self.check(ref, upstream)
            except OriginAnswer as answer:
                _log.debug("revalidation answered", ref=str(ref), status=answer.status)
            except Unidentified:
                pass  # The origin no longer names the object's version, and the check has dropped its pages.
            except OriginError:
                # A HEAD that fails must not keep the other objects from being checked.
                self._failed_in_a_row += 1
                if self._failed_in_a_row >= _GIVES_UP_AFTER:
                    raise
                continue
            self._failed_in_a_row = 0

    async def _list(self, upstream: Upstream, prefix: ObjectRef, keys: list[str]) -> list[str]:
        """Check ``keys`` by one listing, of the whole prefix or from the first key on. Check each key that
        the listing does not confirm by a HEAD. Return the sorted keys beyond the end of the listing.
        """
        first = keys[0]
        start_after = just_before(first) if prefix in self._long else ""
        asked = self._asked()
        try:
            page = await self._origin.list_objects(
                prefix.bucket, prefix.key, start_after=start_after, upstream=upstream
            )
        except OriginError as error:
            # A refusal is not a fault: the credentials may not list, or the prefix is too large for the
            # origin. The objects are then checked by HEAD.
            _log.info("listing refused", prefix=str(prefix), namespace=prefix.namespace, error=str(error))
            self._refused[upstream, prefix] = _AFTER_REFUSAL
            return keys
        if asked.voided != self._voided:
            return keys
        listed = {entry.key: entry for entry in page.entries}
        reach = page.entries[-1].key.encode() if page.entries and page.truncated else None
        if reach is not None and not start_after:
            self._long.add(prefix)
            if reach < first.encode():
                return keys  # The next listing starts from the first key.
        unconfirmed, beyond = [], []
        for number, key in enumerate(keys, 1):
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
            if reach is not None and key.encode() > reach and key != first:
                beyond.append(key)
                continue
            entry, ref = listed.pop(key, None), prefix.beside(key)
            if entry is not None and self._shown(ref, entry, asked) in _IS_CURRENT:
                self._pending.pop(ref)
            else:
                unconfirmed.append(key)
        # Compare the other listed objects before HEADs are sent, because HEADs may take long, and the listing
        # describes this moment.
        others = await self._compare(upstream, prefix, list(listed.values()), asked)
        await self._ask_each(prefix, unconfirmed)
        # If the listing confirmed few other objects of the prefix, check the next keys by HEAD again.
        self._asked_singly[prefix] = _LIST_FROM if others >= _LIST_FROM else 0
        return beyond

    def _asked(self) -> ListingAsked:
        began = None if self._ownership is None else self._ownership.begin()
        return ListingAsked(self._now_s(), self._voided, began)

    def _shown(self, ref: ObjectRef, entry: ListEntry, asked: ListingAsked) -> Listed:
        return self._confirm(ref, entry, asked) if asked.voided == self._voided else Listed.UNKNOWN

    async def _compare(
        self, upstream: Upstream, bucket: ObjectRef, entries: Sequence[ListEntry], asked: ListingAsked
    ) -> int:
        """Compare a listing with cached objects for which no check is waiting, and drop those of another
        version. Return the number of objects whose check was due.
        """
        news, changed = 0, []
        for number, entry in enumerate(entries, 1):
            ref = bucket.beside(entry.key)
            shown = Listed.UNKNOWN if ref in self._pending else self._shown(ref, entry, asked)
            news += shown is Listed.CURRENT
            if shown is Listed.OTHER:
                changed.append((ref, entry))
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        if changed:
            # Some servers list other ETags than they send with objects, so first check a few objects by HEAD.
            some = changed[:: max(1, len(changed) // _BEAR_OUT)][:_BEAR_OUT]
            await self._ask_each(bucket, [entry.key for _, entry in some], upstream)
            if all(self._shown(ref, entry, asked) in _IS_CURRENT for ref, entry in some):
                for ref, entry in changed:
                    if self._shown(ref, entry, asked) is Listed.OTHER:
                        self._outdated(ref)
        return news + len(changed)

    async def _sweep(self, prefix: ObjectRef, most_pages: int) -> None:
        start_after = ""
        DEADLINE.set(None)
        try:
            upstream = upstream_in(self._upstreams, prefix.namespace)
            for _ in range(most_pages):
                asked = self._asked()
                page = await self._origin.list_objects(
                    prefix.bucket, prefix.key, start_after=start_after, upstream=upstream
                )
                await self._compare(upstream, prefix, page.entries, asked)
                if not (page.truncated and page.entries):
                    return
                start_after = page.entries[-1].key
                await asyncio.sleep(_PACE_S)
        except OriginError as error:
            _log.warning(
                "revalidation failed", prefix=str(prefix), namespace=prefix.namespace, error=str(error)
            )
