"""Values that are passed between layers. All are immutable, and compare by value."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from functools import partial
from operator import itemgetter
from typing import NamedTuple, NewType

Upstream = NewType("Upstream", str)
"""Name of a set of origin credentials. Two clients with the same upstream have the same rights
at the origin.
"""

SHARED = Upstream("shared")
"""The upstream of the proxy's own origin credentials."""

OWN = ""
"""The namespace of the proxy's own credentials."""

Headers = tuple[tuple[str, str], ...]
"""HTTP header fields in wire order, with names as received."""

names_of: Callable[[Iterable[tuple[str, str]]], Iterator[str]] = partial(map, itemgetter(0))
"""Return the names of header fields in order. This runs in C, without an interpreter step for each field."""


def first_value(headers: Iterable[tuple[str, str]], name: str) -> str:
    """Return the first value of a header field, or "". ``name``: in lower case."""
    return next((value for found, value in headers if found.lower() == name), "")


class ObjectRef(NamedTuple):
    """One object at the origin, as clients name it (decoded, never normalised).

    ``namespace``: at many origins bucket names belong to an account, so two accounts may each have a bucket
    of the same name. The namespace tells these buckets apart.
    """

    bucket: str
    key: str
    namespace: str = OWN

    def __str__(self) -> str:
        # The namespace is left out: clients see this text, and a namespace may be named after a key at the
        # origin.
        return f"s3://{self.bucket}/{self.key}"

    def is_under(self, bucket: str, prefix: str, namespace: str) -> bool:
        """Return whether the object is in that bucket of that namespace, and its key begins
        with ``prefix``.
        """
        return self.bucket == bucket and self.namespace == namespace and self.key.startswith(prefix)

    def beside(self, key: str) -> "ObjectRef":
        """Return another object in the same bucket; with an empty key, the bucket itself."""
        return ObjectRef(self.bucket, key, self.namespace)


class Span(NamedTuple):
    """Half-open byte range ``[start, stop)`` of an object. Inclusive ranges exist only in HTTP."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class Page(NamedTuple):
    """Identity of a page: the unit of caching, eviction and single-flight.

    The ETag is part of the identity. So a new version of an object has new pages, and a reader never gets a
    mix of versions.
    """

    ref: ObjectRef
    etag: str
    number: int


class Intent(Enum):
    """Purpose of a call of the engine. Only DEMAND counts in hit ratios."""

    DEMAND = auto()
    PREFETCH = auto()


class Source(StrEnum):
    """Source of an answer: the value of ``x-shade-cache``."""

    RAM = "ram"
    DISK = "disk"
    ORIGIN = "origin"
    COALESCED = "coalesced"
    BYPASS = "bypass"


UNKNOWN_BYTES = -1
"""``ObjectMeta.size`` if the origin's answer does not state it."""

ENDLESS = 1 << 62
"""Stop of a span that ends where the body ends."""

is_strong_etag: Callable[[str], object] = re.compile('"[\x21\x23-\x7e\x80-\U0010ffff]+"').fullmatch
"""Return a true value for a strong entity tag (RFC 9110 section 8.8.3)."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Metadata of one version of an object.

    ``etag``: the field value with its quotes, unchanged from the origin; "" if it sent none, or several.
    ``size``: the whole object's length in bytes, or UNKNOWN_BYTES. ``headers``: the origin's header fields
    for a GET of the whole object in wire order (Content-Type, Last-Modified, x-amz-meta-*, checksums ...),
    without ETag, Content-Length, Content-Range, connection fields, dates and request ids.
    """

    etag: str
    size: int
    headers: Headers = ()

    @property
    def identified(self) -> bool:
        """True if a strong entity tag names this version and its length is known.

        Only then may the object be cached, or assembled from several answers. A weak entity tag does not
        identify bytes (RFC 9110 section 8.8.3), and neither does a malformed one.
        """
        return self.size >= 0 and is_strong_etag(self.etag) is not None

    def header(self, name: str) -> str | None:
        """Return the first value of ``name`` (case-insensitive), or None."""
        wanted = name.lower()
        return next((value for field_name, value in self.headers if field_name.lower() == wanted), None)


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@+=-]{0,127}$"
"""Valid names of jobs and datasets."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job, epoch and rank of a read (header ``x-shade-job: name;epoch=3;rank=0``)."""

    job: str
    epoch: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One object of a listing. ``etag`` keeps its quotes; ``last_modified`` is the origin's text."""

    key: str
    size: int
    etag: str
    last_modified: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ListPage:
    """Up to 1,000 entries of a listing in UTF-8 key order. ``truncated``: more entries follow
    the last key.
    """

    entries: tuple[ListEntry, ...]
    truncated: bool
