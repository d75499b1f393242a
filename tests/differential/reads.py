"""Hypothesis strategies for GetObject and HeadObject in every form that a client may send."""

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from .corpus import Stored
from .wire import PAGE_BYTES, Request

_QUERIES = (
    "",
    "",
    "",
    "",
    "x-id=GetObject",
    "unknown=1&other",
    "response-content-type=text%2Fx&response-cache-control=no-store",
    "response-content-disposition=attachment%3B%20filename%3D%22x%20y%22&response-expires=Thu%2C%2001%20Dec%202044",
    "response-content-encoding=zip&response-content-language=nl",
    "versionId=null",
    "partNumber=1",
)
_OTHER_FIELDS = (
    ("x-amz-checksum-mode", "ENABLED"),
    ("Cache-Control", "no-cache"),
    ("Cache-Control", "max-age=0"),
    ("Accept-Encoding", "gzip, deflate, br"),
    ("Accept", "*/*"),
    ("User-Agent", "differential/1"),
    ("x-amz-unknown", "1"),
)


def ranges(size: int) -> st.SearchStrategy[str]:
    """Return values of Range for an object of ``size`` bytes: valid, beyond the end, reversed, several
    ranges, and nonsense.
    """
    edges = sorted(
        {0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, size - 1, size, size + 1, 10**12} - {-1}
    )
    number = st.sampled_from(edges) | st.integers(0, size + 10)
    return st.one_of(
        st.builds("bytes={}-{}".format, number, number),
        st.builds("bytes={}-".format, number),
        st.builds("bytes=-{}".format, number),
        st.sampled_from(
            (
                "bytes=0-0,2-3",
                "bytes=0-0, -1",
                "Bytes=0-1",
                "BYTES=0-1",
                "bytes= 0-1",
                "bytes=0 - 1",
                "bytes 0-1",
                "bytes=",
                "bytes=-",
                "bytes=--1",
                "bytes=a-b",
                "bytes=0x0-0x1",
                "items=0-1",
                "0-1",
                "bytes=+0-1",
                "bytes=0-99999999999999999999999999",
                "none",
            )
        ),
    )


def _tags(stored: Stored) -> st.SearchStrategy[str]:
    own = stored.etag
    return st.sampled_from(
        (
            own,
            own.strip('"'),
            '"0123456789abcdef0123456789abcdef"',
            f"W/{own}",
            f'"other", {own}',
            f'"other",W/{own}',
            '"other"',
            "*",
            "",
        )
    )


def _dates(stored: Stored) -> st.SearchStrategy[str]:
    return st.sampled_from(
        (
            stored.last_modified,
            stored.dated(-1),
            stored.dated(1),
            stored.dated(-86_400),
            stored.dated(3_600),
            "Sat, 29 Oct 1994 19:43:31 GMT",
            "Saturday, 29-Oct-94 19:43:31 GMT",
            "Sat Oct 29 19:43:31 1994",
            "not a date",
            "0",
        )
    )


@st.composite
def reads(draw: st.DrawFn, bucket: str, objects: Sequence[Stored]) -> tuple[Request, Stored]:
    """Draw a request, and the object that it reads."""
    stored = draw(st.sampled_from(objects))
    fields: list[tuple[str, str]] = []
    choices = {
        "Range": ranges(len(stored.body)),
        "If-Match": _tags(stored),
        "If-None-Match": _tags(stored),
        "If-Modified-Since": _dates(stored),
        "If-Unmodified-Since": _dates(stored),
        "If-Range": _tags(stored) | _dates(stored),
    }
    wanted = draw(st.sets(st.sampled_from(sorted(choices)), max_size=3))
    fields += [(name, draw(choices[name])) for name in sorted(wanted)]
    fields += draw(st.lists(st.sampled_from(_OTHER_FIELDS), max_size=2, unique_by=lambda field: field[0]))
    query = draw(st.sampled_from(_QUERIES))
    target = f"/{bucket}/{stored.raw_key}" + (f"?{query}" if query else "")
    return Request(draw(st.sampled_from(("GET", "HEAD"))), target, tuple(fields)), stored


def pinned(bucket: str, objects: Sequence[Stored]) -> Iterator[tuple[Request, Stored]]:
    """Yield reads that are played in each run: every form of range, for every size of object."""
    by_size = {len(stored.body): stored for stored in objects}
    for size, stored in by_size.items():
        forms = (
            "-0",
            "-1",
            f"-{size}",
            f"-{size + 1}",
            "0-0",
            f"0-{size}",
            f"{size}-",
            f"{size - 1}-",
            "1-0",
        )
        for form in forms if size else ("-0", "-1", "0-0", "0-", "1-"):
            fields = (("Range", f"bytes={form}"), ("x-amz-checksum-mode", "ENABLED"))
            yield Request("GET", f"/{bucket}/{stored.raw_key}", fields), stored
