"""Values that are passed between layers. All are immutable, and compare by value."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from functools import partial
from operator import itemgetter
from typing import NamedTuple, NewType

Upstream = NewType("Upstream", str)
"""Name of a set of credentials at the origin. Clients with the same upstream have the same rights there."""

SHARED = Upstream("shared")
"""The upstream of the proxy's own origin credentials."""

OWN = ""
"""The namespace of the bucket names that the proxy's own credentials can reach."""

Headers = tuple[tuple[str, str], ...]
"""HTTP header fields in wire order, with names as received."""

names_of: Callable[[Iterable[tuple[str, str]]], Iterator[str]] = partial(map, itemgetter(0))
"""Returns the names of header fields in order. It runs in C, without an interpreter step for each field."""


def first_value(headers: Iterable[tuple[str, str]], name: str) -> str:
    """Return the first value of a header field; "" if it is missing. ``name``: in lower case."""
    return next((value for found, value in headers if found.lower() == name), "")


class ObjectRef(NamedTuple):
    """One object at the origin, with its names as clients mean them (decoded, never normalised).

    ``namespace``: at many origins a bucket name belongs to an account, so two accounts may each have a bucket
    of the same name. The namespace tells the two buckets apart.
    """

    bucket: str
    key: str
    namespace: str = OWN

    def __str__(self) -> str:
        # Leave out the namespace: clients see this text, and a namespace may contain an access key at the
        # origin.
        return f"s3://{self.bucket}/{self.key}"

    def is_under(self, bucket: str, prefix: str, namespace: str) -> bool:
        """Return whether the object is in that bucket of that namespace, with a key that begins with
        ``prefix``.
        """
        return self.bucket == bucket and self.namespace == namespace and self.key.startswith(prefix)

    def beside(self, key: str) -> "ObjectRef":
        """Return the object ``key`` of the same bucket. An empty key means the bucket itself."""
        return ObjectRef(self.bucket, key, self.namespace)


class Span(NamedTuple):
    """Half-open byte range ``[start, stop)`` of an object. Inclusive ranges exist only in HTTP.

    As in slices of Python, ``Span(-n, 0)`` is the last ``n`` bytes, for objects whose size is not known yet.
    """

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class Page(NamedTuple):
    """The identity of a page, which is the unit of caching, eviction and single-flight.

    The ETag is part of it. So a new version of an object has new pages, and a reader never gets a mixture of
    two versions.
    """

    ref: ObjectRef
    etag: str
    number: int


class Intent(Enum):
    """The purpose of a call to the engine. Only DEMAND counts in hit ratios."""

    DEMAND = auto()
    PREFETCH = auto()


class Source(StrEnum):
    """The place from which the bytes of an answer came. It is the value of ``x-shade-cache``."""

    RAM = "ram"
    DISK = "disk"
    ORIGIN = "origin"
    COALESCED = "coalesced"
    BYPASS = "bypass"


UNKNOWN_BYTES = -1
"""Value of ``ObjectMeta.size`` if the origin's answer does not state the size."""

ENDLESS = 1 << 62
"""Value of ``Span.stop`` if the span ends where the body ends."""

is_strong_etag: Callable[[str], object] = re.compile('"[\x21\x23-\x7e\x80-\U0010ffff]+"').fullmatch
"""Returns a true value for a strong entity tag (RFC 9110 section 8.8.3)."""


MOST_BYTES = ((1 << 32) - 1) * 4096
"""Length of the longest object that may be cached: 16 TiB. The numbers of its pages fit 32 bits, even if
pages have their least length, 4 KiB.
"""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Metadata of one version of an object.

    ``etag``: the field value with its quotes, unchanged from the origin; "" if it sent none, or several.
    ``size``: the whole object's length in bytes, or UNKNOWN_BYTES. ``headers``: the header fields of the
    origin's answer to a GET of the whole object, in wire order (Content-Type, Last-Modified, x-amz-meta-*,
    checksums ...), without ETag, Content-Length, Content-Range, connection fields, dates and request ids.
    """

    etag: str
    size: int
    headers: Headers = ()

    @property
    def identified(self) -> bool:
        """True if a strong entity tag names this version, its length is known, and so are the numbers of its
        pages (``MOST_BYTES``).

        Only then may the object be cached, or an answer be put together from several answers of the origin. A
        weak entity tag does not identify bytes (RFC 9110 section 8.8.3), and neither does a malformed one.
        """
        return 0 <= self.size <= MOST_BYTES and is_strong_etag(self.etag) is not None

    def header(self, name: str) -> str | None:
        """Return the first value of the field ``name`` (case-insensitive); None if it is missing."""
        wanted = name.lower()
        return next((value for field_name, value in self.headers if field_name.lower() == wanted), None)


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@+=-]{0,127}$"
"""The pattern of valid names of jobs and datasets."""


class JobContext(NamedTuple):
    """The job, epoch and rank of a read (header ``x-shade-job: name;epoch=3;rank=0``)."""

    job: str
    epoch: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One object in a listing. ``etag``: with its quotes. ``last_modified``: the origin's text."""

    key: str
    size: int
    etag: str
    last_modified: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ListPage:
    """A part of a listing: up to 1,000 entries in UTF-8 order of their keys. ``truncated``: more entries
    follow after the last one.
    """

    entries: tuple[ListEntry, ...]
    truncated: bool
