"""``WrappedOrigin``: passes every call on to another origin. A wrapper overrides the methods that
it changes.
"""

from contextlib import AbstractAsyncContextManager
from typing import Unpack

from shadeproxy.core.types import SHARED, ListPage, ObjectMeta, ObjectRef, Upstream
from shadeproxy.origin.base import (
    ForwardRequest,
    ForwardResponse,
    ListOptions,
    OpenOptions,
    Origin,
    OriginRead,
)


class WrappedOrigin:
    """Passes every call on to ``inner`` unchanged; see ``Origin`` for the methods."""

    def __init__(self, inner: Origin) -> None:
        self._inner = inner

    async def head(self, ref: ObjectRef, *, upstream: Upstream = SHARED) -> ObjectMeta:
        return await self._inner.head(ref, upstream=upstream)

    def open(self, ref: ObjectRef, **options: Unpack[OpenOptions]) -> AbstractAsyncContextManager[OriginRead]:
        return self._inner.open(ref, **options)

    async def list_objects(self, bucket: str, prefix: str, **options: Unpack[ListOptions]) -> ListPage:
        return await self._inner.list_objects(bucket, prefix, **options)

    def forward(self, request: ForwardRequest) -> AbstractAsyncContextManager[ForwardResponse]:
        return self._inner.forward(request)

    async def probe(self) -> str:
        return await self._inner.probe()

    async def aclose(self) -> None:
        await self._inner.aclose()
