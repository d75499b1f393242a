"""The positions, in an answer, of the header fields that this package reads.

Most answers of a server have the same field names in the same order. So the positions are found once for each
list of names, and cached.
"""

from functools import lru_cache
from typing import NamedTuple

from shadeproxy.core.checksums import FIELDS
from shadeproxy.core.kept_fields import kept_of

_NOT_OF_THE_OBJECT = frozenset({
    "etag", "content-length", "content-range", "date", "server", "via", "age", "x-amz-request-id",
    "x-amz-id-2", "x-amzn-requestid", "x-cache", "x-amz-cf-id", "x-amz-cf-pop",
    "strict-transport-security", "alt-svc",
})  # fmt: skip
_CHECKSUMS = frozenset(FIELDS)


class FieldPlaces(NamedTuple):
    """Positions of fields by their names. ``etag``: None if there is no ETag, or more than one.

    ``of_object``: for each field, True if it belongs to the object's metadata when the answer has the whole
    object. ``of_range``: the same when the answer has a range. ``has_checksum``: True if some field may be
    the checksum of the body.
    """

    lengths: tuple[int, ...]
    codings: tuple[int, ...]
    connection: tuple[int, ...]
    ranges: tuple[int, ...]
    dates: tuple[int, ...]
    etag: int | None
    of_object: tuple[bool, ...]
    of_range: tuple[bool, ...]
    has_checksum: bool


@lru_cache(maxsize=64)
def places_of(*names: str) -> FieldPlaces:
    """Return the positions of the fields whose names, in upper or lower case, are ``names``."""
    lowered = [name.lower() for name in names]

    def places(wanted: str) -> tuple[int, ...]:
        return tuple(place for place, name in enumerate(lowered) if name == wanted)

    etags = places("etag")
    of_object = [
        kept and name not in _NOT_OF_THE_OBJECT for name, kept in zip(lowered, kept_of(*lowered), strict=True)
    ]
    of_range = [
        kept and not name.startswith("x-amz-checksum-") for name, kept in zip(lowered, of_object, strict=True)
    ]
    return FieldPlaces(
        lengths=places("content-length"),
        codings=places("transfer-encoding"),
        connection=places("connection"),
        ranges=places("content-range"),
        dates=places("date"),
        etag=etags[0] if len(etags) == 1 else None,
        of_object=tuple(of_object),
        of_range=tuple(of_range),
        has_checksum=not _CHECKSUMS.isdisjoint(lowered),
    )
