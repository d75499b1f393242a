"""A read of a span that another node answers: the request to that node, and its answer as an
``OriginRead``.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

from shadeproxy.core.errors import BodyCutShort, ObjectChanged, OriginError
from shadeproxy.core.sigv4 import encode_path, path_of_key
from shadeproxy.core.types import ENDLESS, SHARED, JobContext, ObjectRef, Span, names_of
from shadeproxy.origin.base import ForwardRequest, ForwardResponse, OpenOptions, OriginRead, PassOn
from shadeproxy.origin.field_places import places_of
from shadeproxy.origin.http1 import Head
from shadeproxy.origin.s3answers import MAX_ERROR_BYTES, error_of, read_bounded
from shadeproxy.origin.s3pages import interpret
from shadeproxy.origin.signing import range_field


def read_request(ref: ObjectRef, options: OpenOptions, job: JobContext | None) -> ForwardRequest:
    """Return the GET by which another node is asked for the read that ``Origin.open`` describes."""
    headers = []
    if (span := options.get("span")) is not None:
        headers.append(("Range", range_field(span)))
    if (etag := options.get("if_match")) is not None:
        headers.append(("If-Match", etag))
    path = f"/{encode_path(ref.bucket)}/{path_of_key(ref.key)}"
    upstream = options.get("upstream", SHARED)
    return ForwardRequest("GET", ref, path, headers=tuple(headers), upstream=upstream, job=job)


async def answered_read(
    answer: ForwardResponse, ref: ObjectRef, options: OpenOptions, *, now_s: float
) -> OriginRead:
    """Return another node's answer in the form that ``Origin.open`` returns. Raises like ``Origin.open``."""
    etag = options.get("if_match")
    if answer.status not in {200, 206}:
        await _refuse(answer, has_etag=etag is not None, now_s=now_s)
    head = _head_of(answer)
    meta, span, skip = interpret(head, options.get("span"))
    if etag is not None and meta.etag != etag:
        raise ObjectChanged(f"{ref} is now another version")
    chunks = _cut_out(answer.chunks, skip, span)
    return OriginRead(meta, span, chunks, pass_on=None if meta.identified and head.length_given else PassOn())


async def continued(
    read: OriginRead, resume: Callable[[Span], AbstractAsyncContextManager[OriginRead]]
) -> AsyncGenerator[bytes, None]:
    """Yield the body of ``read``. If the body breaks off and its version has an ETag, read the rest by
    ``resume``.

    Raises OriginError, and ObjectChanged if the origin has another version by now.
    """
    at, stop = read.span.start, read.span.stop
    try:
        async for chunk in read.chunks:
            at += len(chunk)
            yield chunk
    except OriginError:
        if at >= stop or not read.meta.identified:
            raise
    else:
        return
    async with resume(Span(at, stop)) as rest:
        async for chunk in rest.chunks:
            yield chunk


async def _refuse(answer: ForwardResponse, *, has_etag: bool, now_s: float) -> NoReturn:
    if answer.status == 412 and has_etag:
        raise ObjectChanged("the object is now another version")
    body = await read_bounded(answer.chunks, MAX_ERROR_BYTES)
    raise error_of(answer.status, answer.headers, body, now_s=now_s)


def _head_of(answer: ForwardResponse) -> Head:
    """Return the head of an answer. The connection has checked the framing of that answer."""
    places = places_of(*names_of(answer.headers))
    length = int(answer.headers[places.lengths[0]][1]) if places.lengths else None
    return Head(
        answer.status,
        answer.headers,
        places,
        length,
        length is not None,
        chunked=False,
        keep_alive=False,
        flawed=False,
        size_bytes=0,
    )


async def _cut_out(chunks: AsyncIterator[bytes], skip: int, span: Span) -> AsyncIterator[bytes]:
    """Yield the bytes of ``span`` from a body in which ``skip`` bytes come before them."""
    left = span.length
    async for chunk in chunks:
        wanted = chunk[skip:][:left]
        skip -= min(skip, len(chunk))
        left -= len(wanted)
        if wanted:
            yield wanted
        if not left:
            return
    if left and span.stop < ENDLESS:
        raise BodyCutShort(f"the node ended a body {left} bytes early")
