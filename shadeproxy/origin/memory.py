"""``MemoryOrigin``: an origin whose objects are in memory. It is part of the product, so that tests and
experiments share it.

It passes the conformance tests that every origin must pass. It also counts calls, records reads, can refuse
requests of an upstream, and can stop bodies in the middle (``gate``).
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Unpack

from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import (
    SHARED,
    Headers,
    ListEntry,
    ListPage,
    ObjectMeta,
    ObjectRef,
    Span,
    Upstream,
)
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, ListOptions, OpenOptions, OriginRead
from shadeproxy.origin.s3ops.answers import error, iso_date
from shadeproxy.origin.s3ops.origin import StoreOrigin
from shadeproxy.origin.s3ops.store import (
    ANY_VERSION,
    DEFAULT_CONTENT_TYPE,
    RESERVED,
    BucketEntry,
    Stored,
    WriteCondition,
    no_such_bucket,
    no_such_key,
)


@dataclass(slots=True)
class Barrier:
    """Stops every body in the middle. ``reached``: set as soon as a body waits. ``release`` lets all bodies
    continue.
    """

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    _opened: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        self._opened.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._opened.wait()


@dataclass(frozen=True, slots=True)
class MemoryObject:
    """One version of an object, with its body."""

    body: bytes
    meta: ObjectMeta
    modified_s: float


class MemoryStore:
    """A store of buckets in dicts. Bodies are handed out in pieces of ``chunk_bytes``."""

    def __init__(self, *, chunk_bytes: int, clock: Clock) -> None:
        self.buckets_by_name: dict[str, dict[str, MemoryObject]] = {}
        self.gate: Barrier | None = None
        self._created_s: dict[str, float] = {}
        self._chunk_bytes = chunk_bytes
        self._clock = clock

    def put(self, ref: ObjectRef, body: bytes, headers: Headers) -> ObjectMeta:
        present = {name.lower() for name, _ in headers}
        added = [
            ("Content-Type", DEFAULT_CONTENT_TYPE),
            ("Last-Modified", formatdate(self._clock.now_s(), usegmt=True)),
        ]
        fields = (*headers, *((name, value) for name, value in added if name.lower() not in present))
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        meta = ObjectMeta(etag=etag, size=len(body), headers=fields)
        self._bucket(ref.bucket)[ref.key] = MemoryObject(body, meta, self._clock.now_s())
        return meta

    async def buckets(self) -> Sequence[BucketEntry]:
        return [BucketEntry(name, self._created_s.get(name, 0.0)) for name in sorted(self.buckets_by_name)]

    async def create_bucket(self, name: str) -> None:
        if name in self.buckets_by_name:
            raise OriginAnswer(409, "BucketAlreadyOwnedByYou", "You own this bucket already.")
        self.buckets_by_name[name] = {}
        self._created_s[name] = self._clock.now_s()

    async def delete_bucket(self, name: str) -> None:
        if any(not key.startswith(RESERVED) for key in self._bucket(name)):
            raise OriginAnswer(409, "BucketNotEmpty", "The bucket you tried to delete is not empty.")
        del self.buckets_by_name[name]

    async def stat(self, ref: ObjectRef) -> ObjectMeta:
        return self._object(ref).meta

    @asynccontextmanager
    async def read(self, ref: ObjectRef) -> AsyncIterator[Stored]:
        found = self._object(ref)

        async def chunks(span: Span) -> AsyncGenerator[bytes, None]:
            middle = (span.start + span.stop) // 2
            for start, stop in ((span.start, middle), (middle, span.stop)):
                for at in range(start, stop, self._chunk_bytes):
                    yield found.body[at : min(at + self._chunk_bytes, stop)]
                if self.gate is not None and start == span.start and span.length:
                    await self.gate.wait()

        yield Stored(found.meta, chunks)

    @asynccontextmanager
    async def draft(self, ref: ObjectRef) -> AsyncIterator["MemoryDraft"]:
        self._bucket(ref.bucket)
        yield MemoryDraft(self, ref)

    async def remove(self, ref: ObjectRef) -> None:
        self._bucket(ref.bucket).pop(ref.key, None)

    async def scan(self, bucket: str, prefix: str, start_after: str, max_keys: int) -> ListPage:
        objects = self._bucket(bucket)
        keys = sorted(
            key
            for key in objects
            if key.startswith(prefix)
            and key > start_after
            and (prefix.startswith(RESERVED) or not key.startswith(RESERVED))
        )
        found = [(key, objects[key]) for key in keys[:max_keys]]
        entries = tuple(
            ListEntry(key, one.meta.size, one.meta.etag, iso_date(one.modified_s)) for key, one in found
        )
        return ListPage(entries, truncated=len(keys) > max_keys)

    async def aclose(self) -> None:
        """Do nothing, because there is nothing to close."""

    def current(self, ref: ObjectRef) -> ObjectMeta | None:
        found = self._bucket(ref.bucket).get(ref.key)
        return None if found is None else found.meta

    def _bucket(self, name: str) -> dict[str, MemoryObject]:
        if name not in self.buckets_by_name:
            raise no_such_bucket()
        return self.buckets_by_name[name]

    def _object(self, ref: ObjectRef) -> MemoryObject:
        found = self._bucket(ref.bucket).get(ref.key)
        if found is None:
            raise no_such_key()
        return found


class MemoryDraft:
    """Collects the chunks of a body. ``publish`` stores them all at once."""

    def __init__(self, store: MemoryStore, ref: ObjectRef) -> None:
        self._store = store
        self._ref = ref
        self._chunks: list[bytes] = []

    async def write(self, chunk: bytes) -> None:
        self._chunks.append(bytes(chunk))

    async def publish(self, headers: Headers, condition: WriteCondition = ANY_VERSION) -> ObjectMeta:
        condition.check(self._store.current(self._ref))
        return self._store.put(self._ref, b"".join(self._chunks), headers)


class MemoryOrigin(StoreOrigin):
    """An origin with buckets in memory, and with counters.

    ``gets``, ``heads``, ``lists`` and ``forwards`` count calls. ``reads`` has (ref, span, upstream) of each
    ``open``, in order. Requests of upstreams in ``denied`` get 403 AccessDenied. Set ``gate`` to a Barrier to
    stop bodies in the middle.
    """

    def __init__(self, *, chunk_bytes: int = 65536, clock: Clock | None = None) -> None:
        self._memory = MemoryStore(chunk_bytes=chunk_bytes, clock=clock or SystemClock())
        super().__init__(self._memory, described="memory")
        self.gets = self.heads = self.lists = self.forwards = 0
        self.reads: list[tuple[ObjectRef, Span | None, Upstream]] = []
        self.denied: set[Upstream] = set()
        self.calls_by_upstream: defaultdict[Upstream, int] = defaultdict(int)

    @property
    def buckets(self) -> dict[str, dict[str, MemoryObject]]:
        """The stored objects by bucket and key. A test may change them."""
        return self._memory.buckets_by_name

    @property
    def gate(self) -> Barrier | None:
        return self._memory.gate

    @gate.setter
    def gate(self, gate: Barrier | None) -> None:
        self._memory.gate = gate

    def put(self, bucket: str, key: str, body: bytes, headers: Headers = ()) -> ObjectMeta:
        """Store an object without a request. Create its bucket if that is missing."""
        self.buckets.setdefault(bucket, {})
        return self._memory.put(ObjectRef(bucket, key), body, headers)

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        self.heads += 1
        self._admit(upstream)
        return await super().head(ref, upstream=upstream)

    @asynccontextmanager
    async def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AsyncIterator[OriginRead]:
        self.gets += 1
        upstream = options.get("upstream", SHARED)
        self.reads.append((ref, options.get("span"), upstream))
        self._admit(upstream)
        opened = super().open(ref, **options)
        async with opened as reading:
            yield reading

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        self.lists += 1
        self._admit(options.get("upstream", SHARED))
        return await super().list_objects(bucket, prefix, **options)

    @asynccontextmanager
    async def forward(self, request: ForwardRequest) -> AsyncIterator[ForwardResponse]:
        self.forwards += 1
        try:
            self._admit(request.upstream)
        except OriginAnswer as answer:
            yield error(answer, request)
            return
        async with super().forward(request) as response:
            yield response

    def _admit(self, upstream: Upstream) -> None:
        self.calls_by_upstream[upstream] += 1
        if upstream in self.denied:
            raise OriginAnswer(403, "AccessDenied", "Access Denied")
