"""Records as they are read back from a segment, on any thread: a header, or a whole record, proves itself.

Nothing here touches the books of the store or writes a byte. ``store_id`` and ``address`` are what a header
must carry to be the one that was put there. All raise TierError.
"""

from shadeproxy.core.errors import TierError
from shadeproxy.tiers.base import RecordHeader
from shadeproxy.tiers.record import MOST_HEADER_BYTES, body_hash, read_layout, unpack_header
from shadeproxy.tiers.segment import Segment

# A header with its meta fits into this nearly always.
_PEEK_BYTES = 512


def read_header(
    segment: Segment, offset: int, most_bytes: int, *, store_id: int, address: int
) -> RecordHeader:
    """The proven header of the record at ``offset``, which takes at most ``most_bytes``."""
    raw = segment.read_record(offset, min(most_bytes, _PEEK_BYTES))
    if read_layout(raw).body_start > len(raw):
        raw = segment.read_record(offset, min(most_bytes, MOST_HEADER_BYTES))
    return unpack_header(raw, store_id=store_id, address=address)[0]


def read_whole(
    segment: Segment, offset: int, most_bytes: int, *, store_id: int, address: int, verify: bool
) -> RecordHeader:
    """As ``read_header``, with all of the body read; ``verify``: the body has its hash too."""
    raw = segment.read_record(offset, most_bytes)
    header, layout = unpack_header(raw, store_id=store_id, address=address)
    body = memoryview(raw)[layout.body_start : layout.body_start + layout.body_bytes]
    if len(body) < layout.body_bytes or (verify and body_hash(body) != layout.body_hash):
        raise TierError("the body of a record is damaged")
    return header
