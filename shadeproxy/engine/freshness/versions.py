"""Current versions of objects, and the rights to read them: metadata, freshness, checks, verdicts.

Laws: nothing here reads bodies. The result of a check counts only if no write touched the object since the
origin was asked. Metadata that is too old for its freshness rule is checked before it is used. In a cluster,
the rule applies only to objects that this process owns (ownership.py).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime

from shadeproxy.core.clock import Clock
from shadeproxy.core.dates import parse_http_date
from shadeproxy.core.errors import CachedElsewhere
from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import OWN, SHARED, ListEntry, ObjectMeta, ObjectRef, Page, Upstream
from shadeproxy.engine.base import UNKNOWN, Grant, NothingKnown, ReadRequest
from shadeproxy.engine.freshness.listings import Listed, ListingAsked
from shadeproxy.engine.freshness.namespaces import Upstreams
from shadeproxy.engine.freshness.revalidation import Revalidator
from shadeproxy.engine.freshness.unidentified import UnidentifiedObjects
from shadeproxy.engine.freshness.verdicts import AuthEpoch, Verdicts
from shadeproxy.engine.index.metadata import KnownMetadata, MetadataCache, same_version
from shadeproxy.engine.ownership import Began, Ownership, Standing, validated_s
from shadeproxy.engine.rules import Age, Freshness, Rules
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.origin.base import Origin
from shadeproxy.telemetry.stats import Stats

_MOST_TOUCHED, _MOST_BUCKETS = 4096, 2048
_ANY = ObjectRef("", "", "")  # Stands for all objects.


class Versions:
    """Versions of objects. ``outdated(ref)`` is called when the origin has another version than the cache."""

    def __init__(
        self,
        origin: Origin,
        cache: PageCache,
        *,
        rules: Rules,
        clock: Clock,
        verdicts: Verdicts | None,
        outdated: Callable[[ObjectRef], None],
        stats: Stats,
        upstreams: Upstreams,
        ownership: Ownership | None = None,
    ) -> None:
        """``upstreams``: see namespaces.py."""
        self.ownership = ownership
        self._cache = cache
        self._passed = UnidentifiedObjects(stats, clock)
        self._rules = rules
        self._clock = clock
        self.verdicts = verdicts
        """Verdicts by client; None unless some clients have credentials of their own."""
        self._outdated = outdated
        self._metadata = MetadataCache()
        self.forget = self._metadata.forget
        cache.recovery.doubted = self._metadata.forget_bucket
        self._revalidator = Revalidator(
            origin,
            settle=self._settle,
            confirm=self._confirm,
            outdated=outdated,
            unidentified=self.unidentified,
            now_s=clock.now_s,
            upstreams=upstreams,
            ownership=ownership,
        )
        self._touched_s: dict[ObjectRef, float] = {}
        self.writing: Counter[ObjectRef] = Counter()
        """Number of writes under way, by object."""
        self.closing = False
        """True if reads are refused, because the engine is closing."""

    # ------------------------------------------------------------------ questions

    async def known(self, ref: ObjectRef) -> KnownMetadata | None:
        """Return an object's metadata, or None. If they are not in memory, read them from a record."""
        known = self._metadata.get(ref)
        if known is None and (recalled := await self._cache.recall(ref)) is not None:
            # The origin may have given a newer answer while the record was read.
            known = self._metadata.get(ref) or self._metadata.learn(ref, *recalled)
        return known

    def known_now(self, ref: ObjectRef) -> ObjectMeta | None:
        """Return an object's metadata, however old. Return None if finding it would take a wait."""
        known = self._metadata.get(ref)
        if known is not None:
            return known.meta
        recalled = self._cache.recall_now(ref)
        return None if recalled is None else self._metadata.learn(ref, *recalled).meta

    def fresh_now(self, ref: ObjectRef) -> tuple[KnownMetadata, float] | None:
        """Return metadata that may answer every client, and the Unix time until which it may. Return None if
        there is none, or if the origin must be asked for each client's rights.
        """
        if self.verdicts is not None or self.usable_now(ReadRequest(ref)) is None:
            return None
        known = self._metadata.get(ref)
        assert known is not None, "usable metadata is known"
        until_s, now_s = self._rules.of(ref).fresh_until_s(known.validated_s), self._clock.now_s()
        if self.ownership is not None:
            until_s = min(until_s, now_s + self.ownership.own_for_s(ref))
        return None if until_s <= now_s else (known, until_s)

    def usable_now(self, request: ReadRequest) -> ObjectMeta | None:
        """Return metadata that may answer this client without asking the origin, or None."""
        found = self.find_now(request)
        return None if found is UNKNOWN else found

    def find_now(self, request: ReadRequest) -> ObjectMeta | NothingKnown | None:
        """Return metadata that may answer now, UNKNOWN, or None; see ``ReadsNow.find_now``."""
        ref, verdicts, now_s = request.ref, self.verdicts, self._clock.now_s()
        ownership = self.ownership
        if (
            self.closing
            or request.force_check
            or (ownership is not None and ownership.standing(ref) is not Standing.OWN)
            or (verdicts is not None and not verdicts.allowed(request.upstream, ref, now_s, request.grant))
        ):
            return None
        known = self._metadata.get(ref)
        if known is None:
            table, hashed = self._cache.residents, object_hash(ref)
            if table.occupant(hashed, 0) is None and hashed not in table.other_pages:
                return UNKNOWN
            recalled = self._cache.recall_now(ref)
            if recalled is None:
                return None
            known = self._metadata.learn(ref, *recalled)
        age = self._rules.of(ref).age(known.validated_s, now_s)
        if age is Age.UNUSABLE:
            return None
        if age is Age.STALE:
            self._revalidator.check_soon(ref, request.upstream)
        if verdicts is not None and request.upstream == SHARED:
            self._show_verdict(verdicts, ref, known.meta)
        return known.meta

    def is_new(self, ref: ObjectRef, hashed: int) -> bool:
        """Return whether an object is new: the cache knows no version of it, and recovery has ended.
        ``hashed``: the object's hash.
        """
        table, coming = self._cache.residents, self._cache.recovery.coming
        is_cached = table.occupant(hashed, 0) is not None or hashed in table.other_pages
        return not (coming or is_cached or self._metadata.has_entry(ref))

    def _show_verdict(self, verdicts: Verdicts, ref: ObjectRef, meta: ObjectMeta) -> None:
        """Let workers know until when the proxy's own credentials may read a cached object."""
        table = self._cache.residents
        if table.share is not None and (slot := self._cache.find(Page(ref, meta.etag, 0))) is not None:
            table.share.show_verdict(slot, table.stamps[slot], verdicts.until_s(SHARED, ref))

    def cacheable(self, ref: ObjectRef) -> bool:
        """Return whether an object may be cached now; see ``ReadsNow.cacheable``."""
        # Usually no rule excludes any object and no object is unidentified. Then skip the two calls.
        rules, passed = self._rules, self._passed
        return (rules.all_cached or rules.of(ref).cache) and (not passed.until_s or ref not in passed)

    def cacheable_here(self, ref: ObjectRef) -> bool:
        """Return the result of ``cacheable`` in a cluster: False also if another proxy caches the object."""
        assert self.ownership is not None, "asked in a cluster only"
        return self.cacheable(ref) and self.ownership.standing(ref) is not Standing.FOREIGN

    async def usable(self, request: ReadRequest) -> ObjectMeta | None:
        """Return metadata that may answer now, or None if no version is known. Raises the errors of
        ``check``, and CachedElsewhere.
        """
        standing = Standing.OWN if self.ownership is None else self.ownership.standing(request.ref)
        if standing is Standing.FOREIGN:
            raise CachedElsewhere(request.ref)
        if standing is Standing.CHECK:
            # Ask the origin even if the object is unknown: a flight that already runs may bring an older
            # version.
            return await self.check(request.ref, request.upstream)
        known = await self.known(request.ref)
        if known is None:
            return None
        age = self._rules.of(request.ref).age(known.validated_s, self._clock.now_s())
        if request.force_check or age is Age.UNUSABLE:
            return await self.check(request.ref, request.upstream, exact=request.force_check)
        if age is Age.STALE:
            self._revalidator.check_soon(request.ref, request.upstream)
        return known.meta

    async def check(
        self, ref: ObjectRef, upstream: Upstream, grant: Grant = Grant.HEAD, *, exact: bool = False
    ) -> ObjectMeta:
        """Return metadata from the origin, asked with the credentials of ``upstream`` in a way that proves
        ``grant``, and after this call if ``exact``. Raises OriginError.
        """
        epoch, exact = self.auth_epoch(ref), exact or self._rules.of(ref).freshness is Freshness.REVALIDATE
        meta = await self._revalidator.check(ref, upstream, grant, exact=exact)
        self.allow(upstream, ref, epoch, grant)
        return meta

    def check_listed(self, bucket: str, prefix: str, most_pages: int, namespace: str = OWN) -> None:
        """Check cached objects below ``prefix`` by listings, if their freshness rule is a TTL. The rule
        ``immutable`` needs no check, and with ``revalidate`` each answer has its own.
        """
        place = ObjectRef(bucket, prefix, namespace)
        if self._rules.of(place).freshness is Freshness.TTL:
            self._revalidator.check_listed(place, most_pages)

    async def authorise(self, request: ReadRequest) -> None:
        """Authorise a hit like a miss: unless a verdict is still valid, ask the origin with this client's own
        credentials. Send a GET if the client wants bytes, and a HEAD if it wants metadata only.
        """
        verdicts = self.verdicts
        if verdicts is None:
            return
        if not verdicts.allowed(request.upstream, request.ref, self._clock.now_s(), request.grant):
            await self.check(request.ref, request.upstream, request.grant)

    def auth_epoch(self, ref: ObjectRef) -> AuthEpoch | None:
        """Return the auth epoch. Call this before asking the origin, so that a later write makes the verdict
        void.
        """
        return None if self.verdicts is None else self.verdicts.begin(ref)

    def allow(
        self, upstream: Upstream, ref: ObjectRef, epoch: AuthEpoch | None, grant: Grant = Grant.GET
    ) -> None:
        """Record that the origin let ``upstream`` read ``ref``. Do nothing without an auth epoch."""
        if self.verdicts is not None and epoch is not None:
            self.verdicts.allow(upstream, ref, self._clock.now_s(), epoch, grant=grant)

    def forget_rights(self, verdicts: Verdicts | None) -> None:
        """Forget all rights that the origin granted, and set ``verdicts`` as in ``__init__``.

        With ``verdicts`` None, the origin no longer decides for each client. But cached objects may come from
        reads with other credentials. So each object is checked once with the proxy's own before it answers.
        """
        if self.verdicts is not None:
            if (share := self._cache.residents.share) is not None:
                share.hide_verdicts()
            if verdicts is None:
                self._metadata.clear()
                self._cache.distrust()
        self.verdicts = verdicts

    def distrust(self) -> None:
        """Forget all metadata and rights, and void all checks: another proxy may have written."""
        self._metadata.clear()
        self._revalidator.void_all()
        if self.verdicts is not None:
            self.verdicts.forget_all()
        if (share := self._cache.residents.share) is not None:
            share.hide_verdicts()

    # ------------------------------------------------------------------ metadata from the origin

    def learn(self, ref: ObjectRef, meta: ObjectMeta, began: Began | None = None) -> ObjectMeta:
        """Record metadata from the origin. Return all that is now known of its version, because an earlier
        answer may have had more fields. ``began``: see ``validated_s`` of ownership.py.
        """
        now_s, ownership = self._clock.now_s(), self.ownership
        if ownership is not None:
            now_s = validated_s(ownership, ref, began, now_s)
        return self._metadata.learn(ref, meta, now_s).meta

    def prove(self, ref: ObjectRef, meta: ObjectMeta, began: Began | None = None) -> bool:
        """Record metadata of a version whose bytes have all come. Return False, with nothing recorded, if
        another version is known or cached. ``began``: see ``validated_s`` of ownership.py.
        """
        if self._cache.holds_other_version(ref, meta.etag):
            return False
        now_s, ownership = self._clock.now_s(), self.ownership
        if ownership is not None:
            now_s = validated_s(ownership, ref, began, now_s)
        return self._metadata.learn_unless_other(ref, meta, now_s)

    def unidentified(self, ref: ObjectRef) -> None:
        """Drop all cached pages and metadata of an object, because the origin's answer names no version."""
        self._passed.note(ref)
        if not self.being_written(ref):
            self._outdated(ref)

    def holds_other(self, ref: ObjectRef, meta: ObjectMeta) -> bool:
        """Return whether another version than ``meta`` is known or cached."""
        known = self._metadata.get(ref)
        if known is not None and not same_version(known.meta, meta):
            return True
        return self._cache.holds_other_version(ref, meta.etag)

    async def forget_prefix(self, bucket: str, prefix: str, namespace: str = OWN) -> None:
        await self._metadata.forget_prefix(bucket, prefix, namespace)

    def touch(self, ref: ObjectRef) -> None:
        """Forget an object, because a write touches it. An empty key means the bucket: forget the rights to
        its objects, and their metadata.
        """
        self._revalidator.void(ref)
        self._note_touched(ref)
        self._passed.forget(ref)
        if self.verdicts is not None:
            self.verdicts.forget(ref.bucket, ref.key or None, ref.namespace)
        if ref.key:
            self._metadata.forget(ref)
        else:
            self._metadata.forget_bucket(ref.bucket, ref.namespace)

    def _note_touched(self, ref: ObjectRef) -> None:
        """Note the time of a write: a listing from before it says nothing about the object."""
        now_s = self._clock.now_s()
        if len(self._touched_s) >= _MOST_TOUCHED:
            # Too many objects: treat all objects in their buckets as written now, and if a client has named
            # too many buckets, all objects. The price: more objects are checked by HEAD.
            buckets = {one.beside("") for one in self._touched_s}
            self._touched_s = dict.fromkeys(buckets if len(buckets) <= _MOST_BUCKETS else (_ANY,), now_s)
        self._touched_s[ref] = now_s

    # ------------------------------------------------------------------ writes under way

    def begin_write(self, refs: Iterable[ObjectRef]) -> None:
        self.writing.update(refs)

    def end_write(self, refs: Iterable[ObjectRef]) -> None:
        self.writing.subtract(refs)
        self.writing += Counter()  # Adding an empty Counter drops the counts that are 0.

    def being_written(self, ref: ObjectRef) -> bool:
        writing = self.writing
        return bool(writing) and (ref in writing or ref.beside("") in writing)

    # ------------------------------------------------------------------ life

    @property
    def idle(self) -> bool:
        return self._revalidator.idle and not self.writing

    async def aclose(self) -> None:
        await self._revalidator.aclose()

    # ------------------------------------------------------------------ results of checks

    def _settle(self, ref: ObjectRef, meta: ObjectMeta | None, began: Began | None) -> None:
        """Record the result of a check: keep, replace or forget the cached version. ``meta`` None: the object
        is gone.
        """
        if self.being_written(ref):
            return
        if meta is None or self.holds_other(ref, meta):
            self._outdated(ref)
        if meta is not None:
            checked_s = validated_s(self.ownership, ref, began, self._clock.now_s())
            known = self._metadata.learn(ref, meta, checked_s, complete=True)
            if checked_s:
                self._cache.confirm(ref, known)

    def _confirm(self, ref: ObjectRef, entry: ListEntry, asked: ListingAsked) -> Listed:
        """Compare the cached version with ``entry`` of a listing, and return the result. If both are the
        same, mark the cached version as checked at ``asked``.
        """
        if not validated_s(self.ownership, ref, asked.began, asked_s := asked.at_s):
            return Listed.UNKNOWN
        known = self._metadata.get(ref)
        # Do not keep this metadata in memory: a long listing would push all other metadata out.
        found = self._cache.recall_now(ref) if known is None else (known.meta, known.validated_s)
        touched_s = max(self._touched_s.get(one, -1.0) for one in (ref, ref.beside(""), _ANY))
        if self.being_written(ref) or touched_s >= asked_s:
            return Listed.UNKNOWN
        if found is None:
            # The record that has the metadata may be on a disk.
            others = not self._cache.recovery.coming and self._cache.holds_other_version(ref, entry.etag)
            return Listed.OTHER if others else Listed.UNKNOWN
        meta, checked_s = found
        # Compare the ETags first: recovery then hears of no ETag that only a listing names.
        if (
            meta.etag != entry.etag
            or not _same_time(meta, entry)
            or self._cache.holds_other_version(ref, entry.etag)
        ):
            return Listed.OTHER
        if checked_s < asked_s:
            if known is not None:
                self._metadata.learn(ref, meta, asked_s)
            self._cache.confirm(ref, KnownMetadata(meta, asked_s))
        age = self._rules.of(ref).age(checked_s, self._clock.now_s())
        return Listed.FRESH if age is Age.FRESH else Listed.CURRENT


def _same_time(meta: ObjectMeta, entry: ListEntry) -> bool:
    """Return whether metadata and listing name the same time of modification. Return True also if one of them
    names none.

    A change of header fields in place keeps the ETag and changes this time. A listing may have milliseconds.
    """
    header = meta.header("Last-Modified")
    if not header or not entry.last_modified:
        return True
    try:
        listed = datetime.fromisoformat(entry.last_modified).timestamp()
    except ValueError:
        return False
    modified = parse_http_date(header)
    return modified is not None and abs(modified.timestamp() - listed) < 1
