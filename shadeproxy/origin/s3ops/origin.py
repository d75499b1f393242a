"""``StoreOrigin``: makes an Origin of any Store. It checks names, conditions and spans for all stores."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

from shadeproxy.core.errors import ObjectChanged, Unidentified
from shadeproxy.core.types import SHARED, Intent, ListPage, ObjectMeta, ObjectRef, Span, Upstream
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, HandedOver, OriginRead, PassOn
from shadeproxy.origin.s3ops.router import route
from shadeproxy.origin.s3ops.spans import clamp, without_checksums
from shadeproxy.origin.s3ops.store import RESERVED, Store, no_such_key


class StoreOrigin:
    """An Origin over ``store``. ``described``: the name of the store in the text that ``probe`` returns."""

    def __init__(self, store: Store, *, described: str) -> None:
        self.store = store
        self._described = described

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        del upstream  # A plain store has no accounts, so only the rights of the listener's client count.
        _refuse_reserved(ref)
        meta = await self.store.stat(ref)
        if not meta.identified:
            raise Unidentified(ref)
        return meta

    @asynccontextmanager
    async def open(
        self,
        ref: ObjectRef,
        *,
        span: Span | None = None,
        if_match: str | None = None,
        upstream: Upstream = SHARED,
        intent: Intent = Intent.DEMAND,
        handed: HandedOver | None = None,
    ) -> AsyncIterator[OriginRead]:
        del upstream, intent, handed
        _refuse_reserved(ref)
        async with self.store.read(ref) as stored:
            if if_match is not None and if_match != stored.meta.etag:
                raise ObjectChanged(f"{ref} is now another version")
            wanted = clamp(span, stored.meta.size)
            meta = stored.meta if span is None else without_checksums(stored.meta)
            async with aclosing(stored.chunks(wanted)) as chunks:
                yield OriginRead(meta, wanted, chunks, pass_on=None if meta.identified else PassOn())

    async def list_objects(
        self,
        bucket: str,
        prefix: str,
        *,
        start_after: str = "",
        max_keys: int = 1000,
        upstream: Upstream = SHARED,
    ) -> ListPage:
        del upstream
        if prefix.startswith(RESERVED):
            return ListPage((), truncated=False)
        return await self.store.scan(bucket, prefix, start_after, max_keys)

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        return route(self.store, request)

    async def probe(self) -> str:
        count = len(await self.store.buckets())
        return f"{self._described}: {count} bucket{'s' * (count != 1)}"

    async def aclose(self) -> None:
        await self.store.aclose()


def _refuse_reserved(ref: ObjectRef) -> None:
    if ref.key.startswith(RESERVED):
        raise no_such_key()
