"""Encodes read histories and the reuse learner's state as blocks of bytes.

Laws: a block is little-endian columns in msgpack, with a version. A changed column needs a new version. A
block that contradicts itself, or has an index outside its table, raises StateError.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import StateError
from shadeproxy.core.identity import GroupName
from shadeproxy.hints.reuse.ghosts import GhostColumns, Ghosts, Hashes, StoredGhosts
from shadeproxy.hints.reuse.learner import MOST_PREFIXES, LearnerState
from shadeproxy.hints.reuse.sample import MOST, SampleState
from shadeproxy.policy.hazard import Evidence
from shadeproxy.policy.history import AGE_BINS, GAP_GROUPS, MOST_READS, STATES, Histories

VERSION = 1

Columns = dict[str, NDArray[Any]]

_SAMPLE = {"pages": "<u8", "groups": "<u4", "states": "u1", "reads": "u1"} | dict.fromkeys(
    ("last", "gap", "seen"), "<f8"
)
_EVIDENCE = {"events": "<f8", "exposure": "<f8", "met": "<f8", "expected": "<f8", "fresh": "<f8"}
_GROUPS = {"prefix_of": "u1", "group_reads": "<f8"}
_GHOSTS = {"tag": "<u4", "last": "<u4", "gap": "u1", "reads": "u1", "state": "u1", "prefix": "u1"}
_RESIDENTS = {"pages": "<u8", "last": "<f8", "gap": "<f4", "reads": "u1", "state": "u1", "prefix": "u1"}


class Head(NamedTuple):
    """The first block: names the cache whose histories follow. ``places``: number of places for ghosts.
    ``tick``: the tick at which it was written. ``groups``: the names of groups, by number.
    """

    page_size: int
    places: int
    tick: float
    groups: list[GroupName]


class ResidentColumns(NamedTuple):
    """Read histories of resident pages; columns of shape (n,)."""

    pages: Hashes
    histories: Histories
    prefixes: NDArray[np.intp]


class _Block(msgspec.Struct):
    version: int
    kind: str
    numbers: dict[str, int | float]
    columns: dict[str, bytes]
    names: list[tuple[bytes, ...]] = []


def dump_head(head: Head) -> bytes:
    names = [tuple(part.encode("utf-8", "surrogateescape") for part in name) for name in head.groups]
    numbers = {"page_size": head.page_size, "places": head.places, "tick": head.tick}
    return _encode("head", numbers, {}, names)


def load_head(data: bytes) -> Head:
    """Decode a head. Raises StateError."""
    block = _decode(data, "head")
    groups: list[GroupName] = []
    for name in block.names:
        parts = [part.decode("utf-8", "surrogateescape") for part in name]
        _require(len(parts) == 3)
        groups.append((parts[0], parts[1], parts[2]))
    tick = float(_number(block, "tick"))
    _require(0 <= tick < 1 << 53)
    return Head(int(_number(block, "page_size")), int(_number(block, "places")), tick, groups)


def dump_learnt(learnt: LearnerState) -> bytes:
    """Encode the state of a learner. Call it in the thread that runs the learner's refreshes."""
    sample, evidence = learnt.sample, learnt.evidence.sum(learnt.fresh)
    columns = (
        _pack(sample._asdict(), _SAMPLE)
        | _pack({name: getattr(evidence, name) for name in _EVIDENCE}, _EVIDENCE)
        | _pack(learnt._asdict(), _GROUPS)
    )
    numbers = {
        "seed": sample.seed, "halvings": 64 - (sample.below.bit_length() - 1), "prefixes": evidence.prefixes,
    }  # fmt: skip
    return _encode("learnt", numbers, columns)


def load_learnt(data: bytes, groups: int) -> LearnerState:
    """Decode the state of a learner. ``groups``: the number of its groups. Raises StateError."""
    block = _decode(data, "learnt")
    prefixes, halvings = int(_number(block, "prefixes")), int(_number(block, "halvings"))
    _require(1 <= prefixes <= MOST_PREFIXES and 0 <= halvings <= 64)
    sample, count = _unpack(block, _SAMPLE)
    by_group, known = _unpack(block, _GROUPS)
    _require(count <= MOST and known == groups and len(np.unique(sample["pages"])) == count)
    _within(sample, groups=groups, states=STATES, reads=MOST_READS + 1)
    _within(by_group, prefix_of=prefixes)
    cells = prefixes * STATES * AGE_BINS
    sizes = {"events": cells, "exposure": cells} | dict.fromkeys(
        ("met", "expected", "fresh"), prefixes * GAP_GROUPS
    )
    evidence = {name: _unpack(block, {name: _EVIDENCE[name]}, sizes[name])[0][name] for name in _EVIDENCE}
    for column in (
        *evidence.values(),
        sample["last"],
        sample["gap"],
        sample["seen"],
        by_group["group_reads"],
    ):
        _require(bool(np.isfinite(column).all() and (column >= 0).all()))
    state = SampleState(
        int(_number(block, "seed")), 1 << (64 - halvings), *(_whole(sample[name]) for name in _SAMPLE)
    )
    table = (prefixes * STATES, AGE_BINS)
    events, exposure = (evidence.pop(name).reshape(table) for name in ("events", "exposure"))
    return LearnerState(
        state,
        Evidence(events, exposure, **evidence),
        Evidence.empty(prefixes),
        _whole(by_group["prefix_of"]),
        by_group["group_reads"],
    )


def dump_ghosts(start: int, ghosts: StoredGhosts, tick: float, longest_idle: int) -> bytes:
    """Encode the ghosts that were read in the last ``longest_idle`` ticks. ``start``: the place of the first
    ghost.
    """
    idle = np.uint32(int(tick) & 0xFFFFFFFF) - ghosts.last
    kept = (ghosts.tag != 0) & (idle <= longest_idle)
    columns = _pack({name: column[kept] for name, column in ghosts._asdict().items()}, _GHOSTS)
    columns["kept"] = np.packbits(kept).tobytes()
    return _encode("ghosts", {"start": start, "places": len(kept)}, columns)


def dump_residents(residents: ResidentColumns) -> bytes:
    last, gap, reads, state = residents.histories
    columns = {
        "pages": residents.pages, "last": last, "gap": gap, "reads": reads, "state": state,
        "prefix": residents.prefixes,
    }  # fmt: skip
    return _encode("residents", {}, _pack(columns, _RESIDENTS))


def load_histories(data: bytes, ghosts: Ghosts, *, fits: bool) -> None:
    """Put the histories of a block into the table of ghosts. Load all blocks of ghosts before blocks of
    residents, because ghosts overwrite their places.

    ``fits``: the stored table had as many places; if not, stored ghosts are skipped. Raises StateError.
    """
    block = _decode(data)
    if block.kind == "residents":
        _load_residents(block, ghosts)
    elif block.kind != "ghosts":
        raise StateError(f"a block is of kind {block.kind!r}")
    elif fits:
        _load_ghosts(block, ghosts.columns())


def _load_ghosts(block: _Block, ghosts: StoredGhosts) -> None:
    start, places = int(_number(block, "start")), int(_number(block, "places"))
    _require(0 <= start <= start + places <= len(ghosts.tag))
    bits = np.frombuffer(block.columns.get("kept", b""), np.uint8)
    _require(len(bits) == -(-places // 8))
    kept = start + np.flatnonzero(np.unpackbits(bits, count=places))
    found, _ = _unpack(block, _GHOSTS, len(kept))
    _within(found, state=STATES, reads=MOST_READS + 1, prefix=MOST_PREFIXES)
    for name, column in ghosts._asdict().items():
        column[kept] = found[name]


def _load_residents(block: _Block, ghosts: Ghosts) -> None:
    found, _ = _unpack(block, _RESIDENTS)
    _within(found, state=STATES, reads=MOST_READS + 1, prefix=MOST_PREFIXES)
    _require(bool(np.isfinite(found["last"]).all() and np.isfinite(found["gap"]).all()))
    gap = found["gap"].astype(np.float64)
    reads, state, prefix = (_whole(found[name]) for name in ("reads", "state", "prefix"))
    ghosts.put_all(found["pages"], GhostColumns(found["last"], gap, reads, state, prefix))


def _encode(
    kind: str,
    numbers: Mapping[str, int | float],
    columns: dict[str, bytes],
    names: list[tuple[bytes, ...]] | None = None,
) -> bytes:
    return msgspec.msgpack.encode(_Block(VERSION, kind, dict(numbers), columns, names or []))


def _decode(data: bytes, kind: str = "") -> _Block:
    try:
        block = msgspec.msgpack.decode(data, type=_Block)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateError(f"a block cannot be read: {error}") from None
    if block.version != VERSION:
        raise StateError(f"a block has version {block.version}, this proxy reads {VERSION}")
    if kind and block.kind != kind:
        raise StateError(f"a block is of kind {block.kind!r}, not {kind!r}")
    return block


def _number(block: _Block, name: str) -> int | float:
    _require(name in block.numbers)
    return block.numbers[name]


def _pack(columns: Mapping[str, NDArray[Any]], types: Mapping[str, str]) -> dict[str, bytes]:
    return {name: columns[name].astype(kind, copy=False).tobytes() for name, kind in types.items()}


def _unpack(block: _Block, types: Mapping[str, str], count: int | None = None) -> tuple[Columns, int]:
    """Return the columns of these types, and their common length, which must be ``count`` if
    that is given.
    """
    found: Columns = {}
    for name, kind in types.items():
        data, item = block.columns.get(name), np.dtype(kind)
        _require(data is not None and len(data) % item.itemsize == 0)
        found[name] = np.frombuffer(data or b"", item).astype(item.newbyteorder("="))
    lengths = {len(column) for column in found.values()} | ({count} if count is not None else set())
    _require(len(lengths) == 1)
    return found, lengths.pop()


def _whole(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column of small integers as one of int64; return other columns as they are."""
    return column.astype(np.intp) if column.dtype.kind == "u" and column.dtype.itemsize < 8 else column


def _within(columns: Columns, **stops: int) -> None:
    for name, stop in stops.items():
        _require(not len(columns[name]) or int(columns[name].max()) < stop)


def _require(good: bool) -> None:
    if not good:
        raise StateError("a block contradicts itself")
