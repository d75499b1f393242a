"""Manifests: the map from sample ids to objects, or to parts of objects.

A manifest is made of columns, not of Python objects: a million names are one bytes object and one array. So a
forked worker inherits it without a copy, because reading it changes no reference counts, and a spawned worker
gets it by one memcpy. Only ``tag``, ``guess``, ``registered`` and ``name`` ever change.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.batch_buffer import UNKNOWN, LengthGuess
from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.names import check_name
from shadeproxy_sdk.tag import JobTag


class Entry(NamedTuple):
    """One sample: a whole object, or ``length`` bytes of an object from byte ``offset`` on."""

    bucket: str
    key: str
    offset: int = 0
    length: int | None = None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class Manifest:
    """The samples ``0 .. len - 1`` of the dataset ``name``.

    ``tag``: names the job to which reads of this dataset belong; ``Client.job`` sets it. ``guess``: the
    common length of the whole objects that were read so far, if they have one. ``registered``: the digest of
    this manifest at the proxy, once it is registered there as ``name``.
    """

    def __init__(
        self,
        name: str,
        names: bytes,
        ends: NDArray[np.int64],
        parts: NDArray[np.int64] | None = None,
    ) -> None:
        """Set the columns. ``names``: the texts "bucket/key" of all samples, joined. ``ends``: int64 (n,),
        the end of each text in ``names``. ``parts``: int64 (n, 2), offset and length (-1: whole object), or
        None when all samples are whole objects.
        """
        self.name = name
        self.tag: JobTag | None = None
        self.registered: str | None = None
        self.guess = LengthGuess()
        self._names = names
        self._ends = ends
        self._parts = parts

    @classmethod
    def from_entries(cls, name: str, entries: Iterable[Entry]) -> "Manifest":
        """Make a manifest whose ids are the positions in ``entries``. Raises ConfigError if there are no
        entries, for an entry that names neither an object nor a part of one, and for a ``name`` that the
        proxy refuses.
        """
        check_name(name, "dataset")
        names: list[bytes] = []
        parts: list[tuple[int, int]] = []
        for entry in entries:
            check_entry(entry)
            names.append(f"{entry.bucket}/{entry.key}".encode())
            parts.append((entry.offset, -1 if entry.length is None else entry.length))
        if not names:
            raise ConfigError(f"The dataset {name!r} has no samples: check the bucket and the prefix")
        ends = np.cumsum([len(raw) for raw in names], dtype=np.int64)
        columns = np.array(parts, dtype=np.int64)
        whole = bool((columns[:, 1] < 0).all())
        return cls(name, b"".join(names), ends, None if whole else columns)

    @classmethod
    def from_jsonl(cls, name: str, lines: bytes, *, bucket: str = "") -> "Manifest":
        """Parse JSON lines ``{"bucket", "key"[, "offset", "length"]}`` in id order. ``bucket``: the bucket
        of lines that name none. Raises ConfigError that says which line is wrong.
        """
        numbered = enumerate(lines.splitlines(), 1)
        return cls.from_entries(
            name, (_parse(line, number, name, bucket) for number, line in numbered if line.strip())
        )

    def to_jsonl(self) -> bytes:
        """Return the manifest as JSON lines. Default values are left out."""
        return b"".join(_line(entry) for entry in self)

    @cached_property
    def digest(self) -> str:
        """The digest that the proxy computes for the same list (docs/protocol.md). If two lists have equal
        digests, their ids mean the same samples.
        """
        fingerprint = hashlib.sha256()
        for entry in self:
            part = "" if entry.length is None else f"{entry.offset}:{entry.length}"
            fingerprint.update(f"{entry.bucket}\0{entry.key}\0{part}\n".encode())
        return f"sha256:{fingerprint.hexdigest()}"

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, sample_id: int) -> Entry:
        """Return the entry of ``sample_id``. Raises IndexError outside ``0 .. len - 1``."""
        if type(sample_id) is not int or not 0 <= sample_id < len(self):
            self._check((sample_id,))
        start = int(self._ends[sample_id - 1]) if sample_id else 0
        name = self._names[start : int(self._ends[sample_id])].decode()
        bucket, _, key = name.partition("/")
        if self._parts is None:
            return Entry(bucket, key)
        offset, length = self._parts[sample_id].tolist()
        return Entry(bucket, key, offset, None if length < 0 else length)

    @property
    def whole(self) -> bool:
        """True if all samples are whole objects."""
        return self._parts is None

    def lengths(self, ids: Sequence[int]) -> list[int]:
        """Return the length of each sample, UNKNOWN for whole objects. Raises IndexError."""
        rows = self._check(ids)
        if self._parts is None:
            return [UNKNOWN] * len(ids)
        lengths: list[int] = self._parts[rows, 1].tolist()
        return lengths

    def items_json(self, ids: Sequence[int]) -> list[bytes]:
        """Return each sample as an item of a batch or locate call. Raises IndexError."""
        rows = self._check(ids)
        stops = self._ends[rows].tolist()
        starts = np.where(rows > 0, self._ends[rows - 1], 0).tolist()
        names = [self._names[start:stop].partition(b"/") for start, stop in zip(starts, stops, strict=True)]
        if self._plain:
            # This takes half a microsecond a sample; json.dumps of a dict would take four.
            items = [b'{"bucket":"%b","key":"%b"' % (bucket, key) for bucket, _, key in names]
        else:
            items = [
                b'{"bucket":%b,"key":%b' % (_json_string(bucket), _json_string(key))
                for bucket, _, key in names
            ]
        if self._parts is None:
            return [item + b"}" for item in items]
        return [
            item + (b"}" if length == UNKNOWN else b',"offset":%d,"length":%d}' % (offset, length))
            for item, (offset, length) in zip(items, self._parts[rows].tolist(), strict=True)
        ]

    @cached_property
    def _plain(self) -> bool:
        """True if no name needs escapes in a JSON string (RFC 8259 section 7)."""
        return re.search(rb'["\\\x00-\x1f]', self._names) is None

    def _check(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """Return ``ids`` as an array. Raises IndexError, and ConfigError if they are no integers."""
        rows = np.asarray(ids)
        if not len(ids):
            return rows.astype(np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ConfigError(
                f"sample ids {ids!r:.60} of dataset {self.name!r}: give whole numbers from 0 to "
                f"{len(self) - 1}"
            )
        if not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            bad = next(sample_id for sample_id in ids if not 0 <= sample_id < len(self))
            raise IndexError(f"sample {bad} of dataset {self.name!r}, which has {len(self)}")
        return rows.astype(np.int64, copy=False)

    def __iter__(self) -> Iterator[Entry]:
        return (self[sample_id] for sample_id in range(len(self)))

    def __repr__(self) -> str:
        return f"Manifest({self.name!r}, {len(self)} samples)"


def check_entry(entry: Any) -> None:
    """Raise ConfigError unless ``entry`` is an Entry that names an object, or a part of one."""
    if not isinstance(entry, Entry):
        raise ConfigError(f"{entry!r:.60} is no sample: give Entry(bucket, key), as in manifest[0]")
    bucket, key, offset, length = cast("tuple[Any, Any, Any, Any]", entry)
    if not (isinstance(bucket, str) and isinstance(key, str)):
        raise ConfigError(f"bucket {bucket!r}, key {key!r}: give the two names as texts")
    if not (isinstance(offset, Integral) and (length is None or isinstance(length, Integral))):
        raise ConfigError(f"{entry} with offset {offset!r} and length {length!r}: give whole numbers")
    if not bucket or "/" in bucket or not key:
        raise ConfigError(f"bucket {bucket!r}, key {key!r}: give the two names without s3://")
    is_part = length is not None and int(offset) >= 0 and int(length) >= 0
    if not is_part and (length is not None or offset):
        raise ConfigError(
            f"{entry} with offset {offset} and length {length}: give both, from 0 on, for a part "
            "of the object, or neither for all of it"
        )


def _parse(line: bytes, number: int, name: str, bucket: str) -> Entry:
    """Return the entry in one line. Raises ConfigError that names the line."""
    try:
        record = json.loads(line)
        entry = Entry(
            record.get("bucket", bucket), record["key"], record.get("offset") or 0, record.get("length")
        )
        check_entry(entry)
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        reason = error if isinstance(error, ConfigError) else f"{line!r:.60} is no object with a key"
        raise ConfigError(
            f'line {number} of the manifest {name!r}: {reason}; write {{"bucket": "b", "key": "k"}}, and '
            "offset and length for a part"
        ) from None
    return entry


def _json_string(raw: bytes) -> bytes:
    return json.dumps(raw.decode(), ensure_ascii=False).encode()


def _line(entry: Entry) -> bytes:
    record: dict[str, str | int] = {"bucket": entry.bucket, "key": entry.key}
    if entry.length is not None:
        record |= {"offset": entry.offset, "length": entry.length}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
