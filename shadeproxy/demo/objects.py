"""Stores the photos as objects: either on an existing server, or as files in a directory whose folders are
the buckets.

On an existing server, an object that already has the right size is not overwritten, and nothing is deleted.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from shadeproxy.core.errors import OriginAnswer, OriginError, ShadeProxyError
from shadeproxy.core.types import ObjectRef
from shadeproxy.demo.images import Photo
from shadeproxy.origin.base import ForwardRequest, Origin, once

_CONCURRENCY = 16
_ERROR_BYTES = 500


def write_files(photos: Iterable[Photo], bucket: Path, written: Callable[[Photo], None]) -> None:
    """Write each photo as a file below ``bucket``. Call ``written`` after each one."""
    folders: set[Path] = set()
    for photo in photos:
        path = bucket / photo.key
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        path.write_bytes(photo.data)
        written(photo)


async def find_missing(origin: Origin, bucket: str, prefix: str, photos: Sequence[Photo]) -> list[Photo]:
    """Return the photos that are missing below ``prefix`` in ``bucket``, or that have another size there.
    Raises ShadeProxyError.
    """
    there: dict[str, int] = {}
    last = ""
    try:
        while True:
            page = await origin.list_objects(bucket, prefix, start_after=last)
            there.update({entry.key: entry.size for entry in page.entries})
            if not page.truncated or not page.entries:
                break
            last = page.entries[-1].key
    except OriginError as error:
        raise _explain(error, bucket) from None
    return [photo for photo in photos if there.get(prefix + photo.key) != len(photo.data)]


async def upload(
    origin: Origin, bucket: str, prefix: str, photos: Sequence[Photo], written: Callable[[Photo], None]
) -> None:
    """Upload every photo below ``prefix``, 16 at a time. Raises ShadeProxyError at the first refusal; photos
    that were written before it stay.
    """
    waiting = iter(photos)

    async def work() -> None:
        for photo in waiting:
            await _put(origin, ObjectRef(bucket, prefix + photo.key), photo.data)
            written(photo)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENCY):
                group.create_task(work())
    except* OriginError as failed:
        raise _explain(failed.exceptions[0], bucket) from None


async def _put(origin: Origin, ref: ObjectRef, data: bytes) -> None:
    request = ForwardRequest(
        "PUT",
        ref,
        f"/{quote(ref.bucket)}/{quote(ref.key)}",
        headers=(("Content-Type", "image/png"),),
        body=once(data),
        content_length=len(data),
    )
    async with origin.forward(request) as response:
        text = b"".join([chunk async for chunk in response.chunks])
        if response.status != 200:
            raise OriginAnswer(response.status, "PutObject", text[:_ERROR_BYTES].decode(errors="replace"))


def _explain(error: BaseException, bucket: str) -> ShadeProxyError:
    hints = {
        403: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to keys that may list and write the bucket",
        404: "create the bucket first, or name another with --bucket",
    }
    status = error.status if isinstance(error, OriginAnswer) else 0
    hint = hints.get(status, "check --endpoint and run the demo again: it does not send an object twice")
    return ShadeProxyError(f"the demo cannot use bucket {bucket!r} ({error}); {hint}")
