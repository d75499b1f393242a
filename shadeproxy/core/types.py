"""Values that cross layers. All are immutable; identity is by value."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from functools import partial
from operator import itemgetter
from typing import NamedTuple, NewType

Upstream = NewType("Upstream", str)
"""Name of a set of origin credentials. Two clients with one upstream have the same rights at the origin."""

SHARED = Upstream("shared")
"""The proxy's own origin credentials."""

OWN = ""
"""The namespace of the proxy's own credentials."""

Headers = tuple[tuple[str, str], ...]
"""HTTP header fields in wire order, names as received."""

names_of: Callable[[Iterable[tuple[str, str]]], Iterator[str]] = partial(map, itemgetter(0))
"""The names of fields in their order, without a step of the interpreter for each."""


class ObjectRef(NamedTuple):
    """One object at the origin, as clients name it (decoded, never normalised).

    ``namespace``: in which a bucket's name means this bucket. At many origins such names belong to an
    account, so that two accounts have each a bucket of one name. OWN is that of the proxy's own credentials.
    """

    bucket: str
    key: str
    namespace: str = OWN

    def __str__(self) -> str:
        # Clients see it, and a namespace may be named after a key at the origin.
        return f"s3://{self.bucket}/{self.key}"

    def is_under(self, bucket: str, prefix: str, namespace: str) -> bool:
        """Return whether its key begins with ``prefix`` in that bucket of that namespace."""
        return self.bucket == bucket and self.namespace == namespace and self.key.startswith(prefix)

    def beside(self, key: str) -> "ObjectRef":
        """Another object of the same bucket; with no key the bucket itself."""
        return ObjectRef(self.bucket, key, self.namespace)


class Span(NamedTuple):
    """Half-open byte range ``[start, stop)`` of an object. Inclusive ranges exist only in HTTP."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class Page(NamedTuple):
    """Identity of a page: the unit of caching, eviction, checksum and coalescing.

    ``etag`` is part of it, so a new version of an object is a new page and a reader can never see a mix.
    """

    ref: ObjectRef
    etag: str
    number: int


class Intent(Enum):
    """Why the engine is asked. DEMAND counts in hit ratios and overtakes the others."""

    DEMAND = auto()
    PREFETCH = auto()
    PEER = auto()


class Source(StrEnum):
    """Where an answer came from: the value of ``x-shade-cache``."""

    RAM = "ram"
    DISK = "disk"
    ORIGIN = "origin"
    COALESCED = "coalesced"
    BYPASS = "bypass"


UNKNOWN_BYTES = -1
"""``ObjectMeta.size`` where the origin's answer does not tell it."""

ENDLESS = 1 << 62
"""Where a span stops whose end only the end of the body will tell."""

_STRONG_ETAG = re.compile('"[\x21\x23-\x7e\x80-\U0010ffff]+"')


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What is known of one version of an object.

    ``etag`` is the field value with its quotes, unchanged from the origin; "" where it sent none, or several.
    ``size`` is the whole object's length in bytes, or UNKNOWN_BYTES. ``headers`` are the origin's
    representation headers for a GET of the whole object in wire order (Content-Type, Last-Modified,
    x-amz-meta-*, checksums ...), without ETag, Content-Length, Content-Range, connection headers, dates and
    request ids.
    """

    etag: str
    size: int
    headers: Headers = ()

    @property
    def identified(self) -> bool:
        """Return whether a strong entity tag names this version, and its length is known. Only then may it be
        cached, or put together from several answers. A weak entity tag names no bytes (RFC 9110 section
        8.8.3), and neither does a malformed one.
        """
        return self.size >= 0 and _STRONG_ETAG.fullmatch(self.etag) is not None

    def header(self, name: str) -> str | None:
        """First value of ``name`` (case-insensitive), or None."""
        wanted = name.lower()
        return next((value for field_name, value in self.headers if field_name.lower() == wanted), None)


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@+=-]{0,127}$"
"""Of jobs and datasets."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """Which job, epoch and rank a read belongs to (header ``x-shade-job: name;epoch=3;rank=0``)."""

    job: str
    epoch: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One object of a listing. ``etag`` with its quotes; ``last_modified`` as the origin wrote it."""

    key: str
    size: int
    etag: str
    last_modified: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ListPage:
    """Up to 1,000 entries in UTF-8 key order; ``truncated`` says that more follow the last key."""

    entries: tuple[ListEntry, ...]
    truncated: bool
