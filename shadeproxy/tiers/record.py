"""The record format, versions 1 to 3: how one page looks inside a segment file.

Little-endian: a fixed header of 64 bytes, then the meta (MessagePack), then the body, then slack of zero to
fewer than 320 bytes, so that every record starts on a multiple of 64 bytes.

The header's hash covers the store's id and the record's own address. So a stale copy, a file from another
store, or bytes inside a body that look like a header never count as a record.

A record of the proxy's own namespace has version 1. A record of another namespace has version 2, with the
namespace at the end of its meta. If the entity tag or a header field is not UTF-8, the record has version 3,
which stores both as octets. A release that does not know version 2 or 3 never uses such a record. Golden
tests freeze the formats. This module does no I/O. Data that cannot be packed or parsed raises TierError.
"""

import re
import struct
import sys
from collections.abc import Iterable, Sequence
from itertools import chain, compress
from mmap import mmap
from operator import add
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from shadeproxy.core.delegated_body import WrittenBody
from shadeproxy.core.errors import TierError
from shadeproxy.core.kept_fields import kept_of
from shadeproxy.core.types import OWN, Headers, ObjectMeta, ObjectRef, Page
from shadeproxy.tiers.base import NewHeader, RecordHeader

FORMAT_VERSION = 1
NAMESPACE_VERSION = 2
OCTETS_VERSION = 3
HEADER_BYTES = 64
UNIT_BYTES = 64
MAGIC = b"ShPg"
# Units of the shortest record. A shorter free gap holds no record, so it is added to the record before it.
LEAST_UNITS = 4
# From this length on, a record that sendfile may send shares its last block with no other record. Its body
# then leaves by one sendfile, with no copied end. This costs half a block on average (docs/adr/0007).
WHOLE_BLOCKS_UNITS = 1024

Body = bytes | bytearray | memoryview
_Meta = tuple[str, str, str, bytes, int, list[int | str]]
_NamespaceMeta = tuple[str, str, str, bytes, int, list[int | str], str]
_OctetsMeta = tuple[tuple[str, str, str], bytes, int, list[bytes]]

_VERSIONS = (FORMAT_VERSION, NAMESPACE_VERSION, OCTETS_VERSION)
# The version of a record by the first byte of its meta, which is the number of the meta's parts.
_VERSION_OF_PARTS = {0x96: FORMAT_VERSION, 0x97: NAMESPACE_VERSION, 0x94: OCTETS_VERSION}
# The fields: magic, version, meta bytes, store id, address, body bytes, page number, sequence, validated_s,
# body hash. The sequence makes two records at one address differ even when they hold the same page.
_FIXED = struct.Struct("<4sHHQQIIQdQ")
_HASH = struct.Struct("<Q")
# The three fields of _FIXED from which the position of the body follows.
_PLACE = struct.Struct("<4s2xH16xI")
_META_ENCODER = msgspec.msgpack.Encoder()
_META_DECODER = msgspec.msgpack.Decoder(_Meta)
_NAMESPACE_META_DECODER = msgspec.msgpack.Decoder(_NamespaceMeta)
_NAMES_DECODER = msgspec.msgpack.Decoder(tuple[str, str, str, bytes, int, msgspec.Raw])
_NAMESPACE_NAMES_DECODER = msgspec.msgpack.Decoder(tuple[str, str, str, bytes, int, msgspec.Raw, str])
_OCTETS_META_DECODER = msgspec.msgpack.Decoder(_OctetsMeta)
_OCTETS_NAMES_DECODER = msgspec.msgpack.Decoder(tuple[tuple[str, str, str], bytes, int, msgspec.Raw])
# MD5 entity tags, of one part or of several ("<hex>-12"), are stored as 16 bytes.
_HEX_ETAG = re.compile(r'"([0-9a-f]{32})(-\d+)?"')
_META_LIMIT_BYTES = 0xFFFF
_MOST_REMEMBERED = 256
MOST_HEADER_BYTES = HEADER_BYTES + _META_LIMIT_BYTES
PEEK_BYTES = 512
"""Number of bytes in the first read of a header. Nearly every header fits into these bytes with its meta. A
longer header needs a second read.
"""

# Part of the format: only append here, and raise FORMAT_VERSION when any other line of the format changes.
_COMMON_TEXTS = (
    "Last-Modified", "Content-Type", "Accept-Ranges", "Cache-Control", "Content-Encoding",
    "Content-Disposition", "Content-Language", "Expires", "x-amz-version-id", "x-amz-storage-class",
    "x-amz-server-side-encryption", "x-amz-server-side-encryption-bucket-key-enabled",
    "x-amz-checksum-type", "x-amz-checksum-crc32", "x-amz-checksum-crc32c", "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1", "x-amz-checksum-sha256", "x-amz-tagging-count", "x-amz-replication-status",
    "x-amz-mp-parts-count", "x-amz-meta-mtime", "x-rgw-object-type",
    "bytes", "AES256", "FULL_OBJECT", "COMPOSITE", "Normal", "STANDARD", "true", "null",
    "application/octet-stream", "binary/octet-stream", "application/x-tar", "application/json",
    "image/png", "image/jpeg", "text/plain",
)  # fmt: skip
_CODE_OF_TEXT = {text: code for code, text in enumerate(_COMMON_TEXTS)}


class Layout(NamedTuple):
    """The positions of a record's parts, relative to its start, in bytes."""

    body_start: int
    body_bytes: int
    body_hash: int

    @property
    def record_bytes(self) -> int:
        """Length of the record, a multiple of 64."""
        return aligned(self.body_start + self.body_bytes)


class RecordSummary(NamedTuple):
    """The page that a record holds, and the record's length in units."""

    ref: ObjectRef
    etag: str
    number: int
    body_bytes: int
    validated_s: float
    units: int


def aligned(size_bytes: int) -> int:
    """Return ``size_bytes`` rounded up to a multiple of UNIT_BYTES."""
    return -(-size_bytes // UNIT_BYTES) * UNIT_BYTES


def units_for(sizes_bytes: Iterable[int]) -> list[int]:
    """Return the number of units that a record of each of these sizes takes."""
    return [max(-(-size // UNIT_BYTES), LEAST_UNITS) for size in sizes_bytes]


def encode_meta(page: Page, meta: ObjectMeta) -> bytes:
    """Return the meta bytes of a record. Raises TierError if the names cannot be encoded or are too long."""
    match = _HEX_ETAG.fullmatch(meta.etag)
    etag_text, etag_hash = (match[2] or "", bytes.fromhex(match[1])) if match else (meta.etag, b"")
    texts = tuple(chain.from_iterable(meta.headers))
    coded = tuple(map(_CODE_OF_TEXT.get, texts, texts))
    try:
        bucket, key, namespace = page.ref
        parts = (bucket, key, etag_text, etag_hash, meta.size, coded)
        try:
            raw = _META_ENCODER.encode((*parts, namespace) if namespace else parts)
        except UnicodeEncodeError:
            names, fields = (bucket, key, namespace), list(map(_octets_of, texts))
            raw = _META_ENCODER.encode((names, _octets_of(meta.etag), meta.size, fields))
    except (UnicodeError, OverflowError, msgspec.MsgspecError) as error:
        raise TierError(f"metadata of {page.ref!r} cannot be stored: {error}") from error
    if len(raw) > _META_LIMIT_BYTES:
        raise TierError(f"metadata of {page.ref!r} is longer than {_META_LIMIT_BYTES} bytes")
    return raw


class MetaEncoder:
    """``encode_meta`` with a memory of the last results. A caller first asks for the lengths of the records
    of one turn, and then writes records with the same metas.

    Several threads use one encoder, so each result is stored as one tuple.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[Page, ObjectMeta, bytes]] = {}

    def encode(self, page: Page, meta: ObjectMeta) -> bytes:
        """Return the meta bytes; see ``encode_meta``."""
        known = self._last.get(id(page))
        if known is not None and page is known[0] and meta is known[1]:
            return known[2]
        raw = encode_meta(page, meta)
        if len(self._last) >= _MOST_REMEMBERED:
            self._last.clear()
        self._last[id(page)] = page, meta, raw
        return raw

    def encode_many(
        self, pages: Sequence[Page], metas: Sequence[ObjectMeta], bodies: Sequence[memoryview]
    ) -> tuple[list[bytes], list[int]]:
        """Return the meta bytes of new pages, and the lengths of their records in bytes. Raises as
        ``encode_meta``.
        """
        last, encoded = self._last, list(map(encode_meta, pages, metas))
        if len(last) + len(pages) > _MOST_REMEMBERED:
            last.clear()
        for page, meta, raw in zip(pages, metas, encoded, strict=True):
            last[id(page)] = page, meta, raw
        lengths = map(add, map(len, encoded), map(len, bodies))
        return encoded, [-(-(HEADER_BYTES + length) // UNIT_BYTES) * UNIT_BYTES for length in lengths]


def pack_header(
    header: NewHeader, body: Body | WrittenBody, *, meta: bytes, store_id: int, address: int, sequence: int
) -> bytes:
    """Return header and meta bytes, which are written just before ``body``. ``meta``: the result of
    ``encode_meta``.
    """
    page = header.page
    version = _VERSION_OF_PARTS[meta[0]]
    hashed = body.hashed if isinstance(body, WrittenBody) else xxh3_64_intdigest(body)
    try:
        fixed = _FIXED.pack(
            MAGIC, version, len(meta), store_id, address, len(body), page.number, sequence,
            header.validated_s, hashed,
        )  # fmt: skip
    except struct.error as error:
        raise TierError(f"page {page!r} cannot be stored: {error}") from error
    return fixed + _HASH.pack(xxh3_64_intdigest(fixed + meta)) + meta


def read_layout(raw: Body) -> Layout:
    """Return the layout from the first 64 bytes of a record, without checking a hash. Raises TierError when
    these bytes are no header.
    """
    if len(raw) < HEADER_BYTES or raw[:4] != MAGIC:
        raise TierError("no record here: it was erased, or never written")
    _, _, meta_bytes, _, _, body_bytes, _, _, _, body_hash = _FIXED.unpack_from(raw)
    return Layout(HEADER_BYTES + meta_bytes, body_bytes, body_hash)


def body_place(mapping: mmap, offset: int) -> tuple[int, int]:
    """Return start and length in bytes of the body of the record at ``offset`` of a mapped segment.

    Raises TierError when no record begins there. The header is not proven here: the caller wrote the record
    itself, or proved it before.
    """
    magic, meta_bytes, body_bytes = _PLACE.unpack_from(mapping, offset)
    if magic != MAGIC:
        raise TierError("no record here: it was erased, or never written")
    return offset + HEADER_BYTES + meta_bytes, body_bytes


def unpack_header(raw: Body, *, store_id: int, address: int) -> tuple[RecordHeader, Layout]:
    """Parse and prove a header. ``raw`` begins with the header and contains at least header and meta.

    Raises TierError unless the bytes are exactly those that ``pack_header`` made for this store and address.
    """
    layout, meta_raw = _prove(raw, store_id=store_id, address=address)
    fields = _FIXED.unpack_from(raw)
    try:
        bucket, key, namespace, meta = _decode_meta(meta_raw, fields[1])
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise TierError(f"record metadata is damaged: {error}") from error
    # There are few buckets and many records, so all records share one string.
    page = Page(ObjectRef(sys.intern(bucket), key, sys.intern(namespace)), meta.etag, fields[6])
    return RecordHeader(page, meta, layout.body_bytes, fields[8]), layout


def read_facts(raw: Body, *, store_id: int, address: int) -> RecordSummary:
    """Parse and prove a header, but leave out the object's header fields.

    It takes a third of the time of ``unpack_header``, for a scan of a million records. Raises TierError in
    the same cases.
    """
    if len(raw) < HEADER_BYTES:
        raise TierError("no record here: it was erased, or never written")
    magic, version, meta_bytes, store, place, body_bytes, number, _, validated_s, _ = _FIXED.unpack_from(raw)
    if magic != MAGIC or version not in _VERSIONS or store != store_id or place != address:
        raise TierError("record belongs to another place, store or format")
    meta_raw = bytes(raw[HEADER_BYTES : HEADER_BYTES + meta_bytes])
    _check_header(raw, meta_raw)
    try:
        if version == FORMAT_VERSION:
            bucket, key, etag_text, etag_hash, _, _ = _NAMES_DECODER.decode(meta_raw)
            namespace, etag = OWN, _etag(etag_text, etag_hash)
        elif version == NAMESPACE_VERSION:
            bucket, key, etag_text, etag_hash, _, _, namespace = _NAMESPACE_NAMES_DECODER.decode(meta_raw)
            etag = _etag(etag_text, etag_hash)
        else:
            (bucket, key, namespace), octets, _, _ = _OCTETS_NAMES_DECODER.decode(meta_raw)
            etag = _text_of(octets)
    except msgspec.MsgspecError as error:
        raise TierError(f"record metadata is damaged: {error}") from error
    ref = ObjectRef(bucket, key, namespace)
    length = HEADER_BYTES + meta_bytes + body_bytes
    return RecordSummary(ref, etag, number, body_bytes, validated_s, -(-length // UNIT_BYTES))


def check_record(raw: Body, *, store_id: int, address: int) -> None:
    """Check both hashes of a complete record. Raises TierError if one is wrong, or if the record belongs
    elsewhere.
    """
    layout, _ = _prove(raw, store_id=store_id, address=address)
    check_body(raw, layout)


def check_body(raw: Body, layout: Layout) -> None:
    """Check the hash of the body of a complete record. Raises TierError if it is wrong."""
    body = memoryview(raw)[layout.body_start : layout.body_start + layout.body_bytes]
    if len(body) < layout.body_bytes or body_hash(body) != layout.body_hash:
        raise TierError("the body of a record is damaged")


def _prove(raw: Body, *, store_id: int, address: int) -> tuple[Layout, bytes]:
    """Return the layout of a record and the bytes of its metadata. Raises TierError unless the header is
    right, and of this store and address.
    """
    layout = read_layout(raw)
    meta_raw = bytes(raw[HEADER_BYTES : layout.body_start])
    _check_header(raw, meta_raw)
    _, version, _, store, place, *_ = _FIXED.unpack_from(raw)
    if version not in _VERSIONS or store != store_id or place != address:
        raise TierError("record belongs to another place, store or format")
    return layout, meta_raw


def _check_header(raw: Body, meta_raw: bytes) -> None:
    (stored_hash,) = _HASH.unpack_from(raw, _FIXED.size)
    if stored_hash != xxh3_64_intdigest(bytes(raw[: _FIXED.size]) + meta_raw):
        raise TierError("record header is damaged")


def _decode_meta(raw: bytes, version: int) -> tuple[str, str, str, ObjectMeta]:
    """Return bucket, key, namespace and metadata. Raises msgspec.MsgspecError, IndexError, ValueError."""
    if version == OCTETS_VERSION:
        (bucket, key, namespace), octets, size, fields = _OCTETS_META_DECODER.decode(raw)
        headers = _headers(list(map(_text_of, fields)))
        return bucket, key, namespace, ObjectMeta(_text_of(octets), size, headers)
    parts: _NamespaceMeta
    if version == FORMAT_VERSION:
        parts = (*_META_DECODER.decode(raw), OWN)
    else:
        parts = _NAMESPACE_META_DECODER.decode(raw)
    bucket, key, etag_text, etag_hash, size, texts, namespace = parts
    return bucket, key, namespace, ObjectMeta(_etag(etag_text, etag_hash), size, _headers(texts))


def _octets_of(text: str) -> bytes:
    """Return the octets of a text. Raises UnicodeEncodeError for a text that was not decoded from octets."""
    return text.encode("utf-8", "surrogateescape")


def _text_of(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def body_hash(body: Body) -> int:
    """Return the hash of ``body``, as the record's header carries it."""
    return xxh3_64_intdigest(body)


def _etag(text: str, hashed: bytes) -> str:
    return f'"{hashed.hex()}{text}"' if hashed else text


def _headers(texts: Sequence[int | str]) -> Headers:
    plain = [_COMMON_TEXTS[text] if isinstance(text, int) else text for text in texts]
    # Older releases stored fields that are not kept any more.
    return tuple(compress(zip(plain[::2], plain[1::2], strict=True), kept_of(*plain[::2])))
