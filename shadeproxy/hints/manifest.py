"""Manifests: builds a Dataset from JSON lines or a listing, and writes a Dataset as JSON lines.

Laws: lines, keys, samples and unpacked bytes have limits. An error in a line names the line. A Dataset is
complete or not made at all. The digest is taken over a canonical form that any language can write: for each
sample in id order ``bucket NUL key NUL [offset ":" length] LF`` in UTF-8. The part in brackets is empty for a
whole object. No key holds a NUL, so the form is unambiguous. For a namespace other than the proxy's own,
``NUL namespace NUL LF`` comes before the samples. The work is CPU-bound (about 2 us a line): do it in a
thread of a pool, not on the event loop.
"""

import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Annotated

import msgspec
import numpy as np

from shadeproxy.core.errors import BodyTooLarge, InvalidRequest, MalformedBody
from shadeproxy.core.types import OWN, ObjectRef
from shadeproxy.core.workpool import raise_if_cancelled
from shadeproxy.hints.datasets import MAX_END, WHOLE, Dataset, Entries, Groups, Ids, Sample
from shadeproxy.hints.hashing import object_hash
from shadeproxy.hints.pages import PAGE_SIZE_BYTES, most_pairs

MAX_SAMPLES = 1 << 27
MAX_KEY_BYTES = 1024
# With virtual-host addressing a bucket's name becomes part of a host name. The S3 listener accepts the same
# names.
_BUCKET = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:-]{1,255}")
MAX_BUCKETS = 1024
MAX_BLOB_BYTES = (1 << 32) - 1
# Most bytes that ``ManifestBuilder.finish`` takes for a time, for each sample, and for each page of a sample.
_FINISH_SAMPLE_BYTES = 160
_FINISH_PAGE_BYTES = 64
INDEX_BYTES = 64
"""Bytes a sample of the indexes that a dataset gets when jobs use it."""
_LEAST_COLUMN_BYTES = 20
_BATCH = 4096

Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]


NO_CHARACTER = "a surrogate alone, which is no character"
_UTF_8 = "keys are UTF-8: write the character, or both surrogates of its pair, or leave the sample out"
_LONE = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})(\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)


def lone_surrogate(data: bytes) -> str | None:
    """Return the first escape of a surrogate that stands without its pair in JSON text; None if there is
    none. msgspec calls such text truncated or malformed.
    """
    found = _LONE.search(data)
    return None if found is None else (found[1] or found[2]).decode()


class ManifestLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One line of a manifest. Either every line has an ``id``, or no line has one. In the second case the
    line number, from 0, is the id.
    """

    bucket: str
    key: str
    offset: Offset | None = None
    length: Offset | None = None
    id: Offset | None = None


class ManifestBuilder:
    """Collects the samples of one dataset. ``page_size``: bytes of a page in the dataset's page index."""

    def __init__(
        self,
        name: str,
        *,
        page_size: int = PAGE_SIZE_BYTES,
        max_samples: int = MAX_SAMPLES,
        namespace: str = OWN,
    ) -> None:
        self.name = name
        self._namespace = namespace
        self._page_size = page_size
        self._max_samples = max_samples
        self._decoder = msgspec.json.Decoder(ManifestLine)
        self._last: ObjectRef | None = None
        self._buckets: dict[str, int] = {}
        self._bucket_of = array("H")
        self._blob = bytearray()
        self._ends = array("Q", [0])
        self._hashes = array("Q")
        self._entry_of = array("I")
        self._offset = array("q")
        self._length = array("q")
        self._ids = array("q")
        self._pages = 0

    @property
    def most_bytes(self) -> int:
        """The most bytes that this builder takes until ``finish`` returns, if no more samples are added."""
        count = len(self._entry_of)
        columns = (
            self._bucket_of,
            self._ends,
            self._hashes,
            self._entry_of,
            self._offset,
            self._length,
            self._ids,
        )
        held_bytes = sum(column.itemsize * len(column) for column in columns) + 2 * len(self._blob)
        pages = min(self._pages, most_pairs(count))
        return held_bytes + _FINISH_SAMPLE_BYTES * count + _FINISH_PAGE_BYTES * pages

    @property
    def least_bytes(self) -> int:
        """The least bytes that the dataset will take (hint_memory.py), however many samples are added."""
        return (INDEX_BYTES + _LEAST_COLUMN_BYTES) * len(self._entry_of) + len(self._blob)

    def add_line(self, line: bytes, number: int) -> None:
        """Add the sample of JSON line ``number`` (from 1). Raises MalformedBody, InvalidRequest."""
        try:
            self._add_item(self._decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if (lone := lone_surrogate(line)) is not None:
                raise MalformedBody(f"line {number}: {lone} is {NO_CHARACTER}", hint=_UTF_8) from None
            hint = 'a line is {"bucket": "b", "key": "k"}, with "offset" and "length" for a part of an object'
            raise MalformedBody(f"line {number}: {error}", hint=hint) from None
        except InvalidRequest as error:
            raise InvalidRequest(f"line {number}: {error}", hint=error.hint) from None

    def _add_item(self, item: ManifestLine) -> None:
        if (item.offset is None) != (item.length is None):
            raise InvalidRequest("offset and length come together", hint="give both, or neither")
        if self._entry_of and (item.id is None) == bool(self._ids):
            raise InvalidRequest("some lines have an id and some have none", hint="give all or none")
        self.add(ObjectRef(item.bucket, item.key, self._namespace), item.offset, item.length)
        if item.id is not None:
            self._ids.append(item.id)

    def add(self, ref: ObjectRef, offset: int | None = None, length: int | None = None) -> None:
        """Add the next sample: a whole object, or ``length`` bytes of it. Raises InvalidRequest,
        BodyTooLarge.
        """
        assert ref.namespace == self._namespace, "a dataset is of one namespace"
        if length is not None and (offset or 0) + length > MAX_END:
            raise InvalidRequest(
                f"offset and length end at byte {(offset or 0) + length}, beyond the largest object of S3",
                hint=f"at most {MAX_END} together; leave both out for the whole object",
            )
        if len(self._entry_of) >= self._max_samples:
            raise BodyTooLarge(f"a dataset may have at most {self._max_samples} samples")
        if ref != self._last:
            self._add_entry(ref)
            self._last = ref
        self._entry_of.append(len(self._hashes) - 1)
        self._offset.append(offset or 0)
        self._length.append(WHOLE if length is None else length)
        if length is not None and offset is not None:
            self._pages += (offset + length) // self._page_size - offset // self._page_size

    def _add_entry(self, ref: ObjectRef) -> None:
        try:
            key = ref.key.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"key {ref.key!r} is not valid Unicode", hint=_UTF_8) from None
        if not 0 < len(key) <= MAX_KEY_BYTES or b"\0" in key:
            raise InvalidRequest(
                f"key {ref.key[:80]!r} is not 1 to {MAX_KEY_BYTES} bytes without NUL",
                hint="leave it out: the store can have no object of that name",
            )
        if not _BUCKET.fullmatch(ref.bucket):
            raise InvalidRequest(
                f"{ref.bucket[:80]!r} is not the name of a bucket",
                hint="bucket and key are two fields; a bucket is 1 to 255 of A-Z a-z 0-9 . _ : -",
            )
        if len(self._blob) + len(key) > MAX_BLOB_BYTES:
            raise BodyTooLarge(f"the keys of a dataset may have at most {MAX_BLOB_BYTES} bytes together")
        if ref.bucket not in self._buckets and len(self._buckets) >= MAX_BUCKETS:
            raise InvalidRequest(f"a dataset may span at most {MAX_BUCKETS} buckets")
        self._bucket_of.append(self._buckets.setdefault(ref.bucket, len(self._buckets)))
        self._blob += key
        self._ends.append(len(self._blob))
        self._hashes.append(object_hash(ref))

    def finish(self) -> Dataset:
        """Return the dataset. Raises InvalidRequest when there is no sample, or the ids are not 0 .. n-1."""
        count = len(self._entry_of)
        if not count:
            raise InvalidRequest("the dataset has no sample", hint="check the bucket and the prefix")
        entry_of = np.frombuffer(self._entry_of, dtype=np.uint32)
        offset = np.frombuffer(self._offset, dtype=np.int64)
        length = np.frombuffer(self._length, dtype=np.int64)
        if self._ids:
            order = self._order(count)
            entry_of, offset, length = entry_of[order], offset[order], length[order]
        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        identity = len(hashes) == count and bool(np.array_equal(entry_of, np.arange(count)))
        whole = bool((length == WHOLE).all())
        entries = Entries(
            buckets=tuple(self._buckets),
            bucket_of=np.frombuffer(self._bucket_of, dtype=np.uint16),
            blob=bytes(self._blob),
            ends=np.frombuffer(self._ends, dtype=np.uint64),
            namespace=self._namespace,
        )
        groups = Groups.of(hashes if identity else hashes[entry_of])
        places: tuple[Ids, Ids] | tuple[None, None] = (None, None) if whole else (offset, length)
        draft = Dataset(
            name=self.name,
            digest="",
            count=count,
            entries=entries,
            entry_of=None if identity else entry_of,
            offset=places[0],
            length=places[1],
            groups=groups,
            pages=groups.index(places[0], places[1], self._page_size),
        )
        return replace(draft, digest=digest_of(draft.samples(), self._namespace))

    def _order(self, count: int) -> Ids:
        ids = np.frombuffer(self._ids, dtype=np.int64)
        beyond = np.flatnonzero(ids >= count)
        if len(beyond):
            raise InvalidRequest(
                f"line {beyond[0] + 1}: id {ids[beyond[0]]} with {count} samples",
                hint=f"ids are 0 to {count - 1}, each once",
            )
        order = np.full(count, -1, dtype=np.int64)
        order[ids] = np.arange(count)
        repeated = np.flatnonzero(order[ids] != np.arange(count))
        if len(repeated):
            raise InvalidRequest(
                f"id {ids[repeated[0]]} occurs twice", hint=f"ids are 0 to {count - 1}, each once"
            )
        return order


def digest_of(samples: Iterable[Sample], namespace: str = OWN) -> str:
    """Return the digest of the canonical manifest of ``samples``, which are all in ``namespace``."""
    digest = hashlib.sha256()
    if namespace:
        # No sample has an empty bucket, so no sample has the same line as the namespace.
        digest.update(f"\0{namespace}\0\n".encode("utf-8", "surrogateescape"))
    lines = map(_canonical, samples)
    while batch := b"".join(islice(lines, _BATCH)):
        digest.update(batch)
        raise_if_cancelled()
    return f"sha256:{digest.hexdigest()}"


def _canonical(sample: Sample) -> bytes:
    (bucket, key, _), offset, length = sample
    part = "" if length is None else f"{offset}:{length}"
    return f"{bucket}\0{key}\0{part}\n".encode()


def write_lines(dataset: Dataset) -> Iterator[bytes]:
    """Yield the manifest as JSON lines in id order, in pieces of some hundred KB."""
    encode = msgspec.json.Encoder().encode_lines
    samples = dataset.samples()
    while batch := list(islice(samples, _BATCH)):
        yield encode(
            ManifestLine(ref.bucket, ref.key, None if length is None else offset, length)
            for ref, offset, length in batch
        )
