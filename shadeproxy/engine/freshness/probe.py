"""Asks the origin whether a client may read the bytes of an object."""

from shadeproxy.core.errors import OriginAnswer, Unidentified
from shadeproxy.core.types import ObjectMeta, ObjectRef, Span, Upstream
from shadeproxy.origin.base import Origin


async def probe_get(origin: Origin, ref: ObjectRef, upstream: Upstream) -> ObjectMeta:
    """Return metadata of an object, after the origin has sent a byte of it to ``upstream``. Raises
    OriginError, and Unidentified for an answer that names no version.

    An empty object has no byte to send: the origin answers 416, but only after it has checked the rights. So
    a 416 is enough if a HEAD confirms that the object is empty.
    """
    first = bytearray(1)
    try:
        async with origin.open(ref, span=Span(0, 1), upstream=upstream) as read:
            if read.pass_on is not None:
                raise Unidentified(ref)
            # An origin may answer 200 for an empty object.
            await read.read_into(memoryview(first)[: read.span.length], lambda _count: None)
            return read.meta
    except OriginAnswer as answer:
        if answer.status != 416:
            raise
        meta = await origin.head(ref, upstream=upstream)
        if meta.size:
            raise
        return meta
