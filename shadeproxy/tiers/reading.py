"""Reading records back from a segment, on any thread: the hashes prove a header, or a whole record.

This module never changes the store's counts or writes a byte. ``store_id`` and ``address``: the values that
the header of the wanted record must carry. Every function raises TierError.
"""

from shadeproxy.core.errors import TierError
from shadeproxy.tiers.base import RecordHeader
from shadeproxy.tiers.record import MOST_HEADER_BYTES, body_hash, read_layout, unpack_header
from shadeproxy.tiers.segment import Segment

# Nearly every header with its meta fits into this.
_PEEK_BYTES = 512


def read_header(
    segment: Segment, offset: int, most_bytes: int, *, store_id: int, address: int
) -> RecordHeader:
    """Return the proven header of the record at ``offset``, which takes at most ``most_bytes``."""
    raw = segment.read_record(offset, min(most_bytes, _PEEK_BYTES))
    if read_layout(raw).body_start > len(raw):
        raw = segment.read_record(offset, min(most_bytes, MOST_HEADER_BYTES))
    return unpack_header(raw, store_id=store_id, address=address)[0]


def read_whole(
    segment: Segment, offset: int, most_bytes: int, *, store_id: int, address: int, verify: bool
) -> RecordHeader:
    """Read the whole record and return its proven header; with ``verify`` check the hash of the body too."""
    raw = segment.read_record(offset, most_bytes)
    header, layout = unpack_header(raw, store_id=store_id, address=address)
    body = memoryview(raw)[layout.body_start : layout.body_start + layout.body_bytes]
    if len(body) < layout.body_bytes or (verify and body_hash(body) != layout.body_hash):
        raise TierError("the body of a record is damaged")
    return header
