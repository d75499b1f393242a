"""CRC-32C and CRC-64/NVME with numpy: many lanes step in parallel, then the lanes are folded together.

Source: Castagnoli polynomial (RFC 3720 appendix B.4), CRC-64/NVME (NVM Express NVM command set, section
5.2.1.3.4). Byte by byte in Python runs at 10 MB/s; 1,024 lanes in numpy at about 100. Hot paths never
come here: only uploads to an origin that is not an S3 server.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_LANES = 1024
_SMALL_BYTES = 4096

Table = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class CrcModel:
    """A reflected CRC with all ones as initial value and final xor."""

    width_bits: int
    polynomial: int
    """Bit-reversed."""


CRC32C = CrcModel(32, 0x82F63B78)
CRC64NVME = CrcModel(64, 0x9A6C9329AC4BC9B5)


class ParallelCrc:
    """A running CRC; ``digest`` is big-endian, as S3 writes it."""

    def __init__(self, model: CrcModel) -> None:
        self._model = model
        self._ones = (1 << model.width_bits) - 1
        self._state = self._ones

    def update(self, data: bytes, /) -> None:
        lane_bytes = len(data) // _LANES
        head = lane_bytes * _LANES if len(data) >= _SMALL_BYTES else 0
        if head:
            self._state = _fold(self._model, self._state, data[:head], lane_bytes)
        self._state = _step(self._model, self._state, data[head:])

    def digest(self) -> bytes:
        return (self._state ^ self._ones).to_bytes(self._model.width_bits // 8, "big")


@lru_cache(maxsize=2)
def _table(model: CrcModel) -> tuple[list[int], Table]:
    values = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (model.polynomial if value & 1 else 0)
        values.append(value)
    return values, np.array(values, dtype=np.uint64)


def _step(model: CrcModel, state: int, data: bytes) -> int:
    table, _ = _table(model)
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state


def _fold(model: CrcModel, state: int, data: bytes, lane_bytes: int) -> int:
    """Each lane's CRC from zero, all lanes at once; then state = advance(state, lane_bytes) ^ lane."""
    _, table = _table(model)
    columns = np.frombuffer(data, dtype=np.uint8).reshape(_LANES, lane_bytes).T.astype(np.uint64)
    lanes = np.zeros(_LANES, dtype=np.uint64)
    low, eight = np.uint64(0xFF), np.uint64(8)
    for column in columns:
        lanes = table[(lanes ^ column) & low] ^ (lanes >> eight)
    advance = _advance(model, lane_bytes)
    for lane in lanes.tolist():
        moved = 0
        for position, row in enumerate(advance):
            moved ^= row[(state >> (8 * position)) & 0xFF]
        state = moved ^ lane
    return state


@lru_cache(maxsize=64)
def _advance(model: CrcModel, zero_bytes: int) -> list[list[int]]:
    """Tables [byte position][byte]: the state after ``zero_bytes`` more zero bytes, by linearity."""
    _, table = _table(model)
    positions = model.width_bits // 8
    basis = np.arange(256, dtype=np.uint64)[None, :] << (np.arange(positions, dtype=np.uint64) * 8)[:, None]
    low, eight = np.uint64(0xFF), np.uint64(8)
    for _ in range(zero_bytes):
        basis = table[basis & low] ^ (basis >> eight)
    rows: list[list[int]] = basis.tolist()
    return rows
