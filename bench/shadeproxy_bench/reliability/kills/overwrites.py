"""Objects that are overwritten while processes are lost, and the versions that a read of them may return.

A read must return a version that is at least the last version acknowledged at the begin of the read, and at
most the last version sent at its end. Each object has one writer. An upload that broke off may or may not
have been carried out, so its writer stops until the next round. A round begins only when the origin has no
upload under way.
"""

import asyncio
import random
from pathlib import Path
from typing import Final

from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reliability.kills.client import CUT, RIGHT, WRITTEN, End, read, write
from shadeproxy_bench.reliability.kills.origin import LONG_BYTES, VERSIONS, PacedOrigin
from shadeproxy_bench.reliability.kit.versions import Versions

STALE = "stale"
OVERTAKEN, OVERTAKEN_LONG = "cut, overwritten", "cut, two pages overwritten"
"""The read broke off because its object was overwritten meanwhile: the rest of the old version no longer
existed. ``OVERTAKEN_LONG``: a read of several pages, which no fault is needed for.
"""
SIZES: Final = (4_096, 100_000, 1_000_000) * 6 + (LONG_BYTES,) * 2
_FIRST_NUMBER = 90_000_000
_WRITES, _READS, _READERS = 3, 3, 24
_MOST_WAIT_S = 0.2
_PART_STARTS, _PART_BYTES, _SHARE_OF_PARTS = (300_000, 1_500_000, 4_400_000, 4_940_000), 60_000, 0.5
"""So many reads of a long object are reads of one of these parts, which the proxy may store alone. The last
part is asked for as the last bytes.
"""
Address = tuple[str, int]


class Overwrites:
    """The overwritten objects, with their writers and readers."""

    def __init__(self, directory: Path, origin: PacedOrigin, choices: random.Random) -> None:
        self.pieces = [Piece(size, _FIRST_NUMBER + VERSIONS * turn) for turn, size in enumerate(SIZES)]
        self._versions = Versions.create(directory / "versions", len(SIZES))
        self._origin = origin
        self._choices = choices

    async def play(self, address: Address) -> list[End]:
        """Write and read the objects for one round. Return how each read and upload ended."""
        writers = [self._write(address, place) for place in range(len(self.pieces))]
        readers = [self._read_some(address) for _ in range(_READERS)]
        return [end for ends in await asyncio.gather(*writers, *readers) for end in ends]

    async def compare(self, address: Address) -> list[End]:
        """Read each object, and each part, while no upload is under way. A read that returns another version
        than the origin has is stale.
        """
        for place, piece in enumerate(self.pieces):
            self._versions.acknowledge(place, self._origin.versions[piece.number])
        pieces = [one for piece in self.pieces for one in (piece, *_parts_of(piece))]
        ends = await asyncio.gather(*(read(address, piece) for piece in pieces))
        return [
            end if end.outcome != RIGHT or end.version == self._origin.versions[piece.number] else _stale(end)
            for piece, end in zip(pieces, ends, strict=True)
        ]

    async def _write(self, address: Address, place: int) -> list[End]:
        ends: list[End] = []
        for _ in range(_WRITES):
            await asyncio.sleep(self._choices.random() * _MOST_WAIT_S)
            version = self._versions.start(place)
            ends.append(await write(address, self.pieces[place], version, self._choices))
            if ends[-1].outcome != WRITTEN:
                break
            self._versions.acknowledge(place, version)
        return ends

    async def _read_some(self, address: Address) -> list[End]:
        ends: list[End] = []
        for _ in range(_READS):
            await asyncio.sleep(self._choices.random() * _MOST_WAIT_S)
            place = self._choices.randrange(len(self.pieces))
            piece = self.pieces[place]
            parts = _parts_of(piece)
            if parts and self._choices.random() < _SHARE_OF_PARTS:
                piece = self._choices.choice(parts)
            least = self._versions.acknowledged(place)
            end = await read(address, piece)
            sent = self._versions.started(place)
            if end.outcome == RIGHT and not least <= end.version <= sent:
                end = _stale(end)
            elif end.outcome == CUT and sent > least:
                of_one_page = piece.size_bytes < LONG_BYTES or piece.length > 0
                end = end._replace(outcome=OVERTAKEN if of_one_page else OVERTAKEN_LONG)
            ends.append(end)
        return ends


def _parts_of(piece: Piece) -> list[Piece]:
    """Return the parts of a long object that are read alone; none of a short one."""
    if piece.size_bytes < LONG_BYTES:
        return []
    return [piece._replace(offset=start, length=_PART_BYTES) for start in _PART_STARTS]


def _stale(end: End) -> End:
    return end._replace(outcome=STALE, what=f"{end.what}, version {end.version}")
