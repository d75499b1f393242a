"""Reflected CRCs over numpy lanes, for the polynomials that zlib lacks.

A piece is cut into lanes of equal length that advance together, one table look-up per byte position for all
of them; then neighbours are joined pairwise: crc(A+B) = shift(crc(A), len B) ^ crc(B), where shift is
linear over GF(2) and so a few table look-ups. A running value continues by the same rule.
Source: crc32_combine in zlib; polynomials from the CRC RevEng catalogue (CRC-32/ISCSI, CRC-64/NVME).
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

_Words = NDArray[np.uint64]
_LANE_BYTES = 256


class Crc:
    """A CRC with all-ones start and final value, input and output reflected.

    ``polynomial`` is the reflected polynomial, ``width`` 32 or 64 bits.
    """

    def __init__(self, polynomial: int, width: int) -> None:
        self.width = width
        self._mask = (1 << width) - 1
        table = []
        for byte in range(256):
            value = byte
            for _ in range(8):
                value = (value >> 1) ^ (polynomial if value & 1 else 0)
            table.append(value)
        self._list = table
        self._table: _Words = np.array(table, dtype=np.uint64)
        self._shift = cache(self._make_shift)

    def __call__(self, data: bytes, crc: int = 0) -> int:
        """CRC of what gave ``crc`` followed by ``data``."""
        whole = len(data) // _LANE_BYTES
        if whole < 2:
            return self._serial(data, crc)
        # Lanes in a power of two, so that the pairwise joins have one length each.
        lanes = 1 << (whole.bit_length() - 1)
        head = lanes * _LANE_BYTES
        value = self._lanes(np.frombuffer(data, np.uint8, head).reshape(lanes, _LANE_BYTES))
        joined = int(self._apply(np.array([crc], np.uint64), head.bit_length() - 1)[0]) ^ value
        return self(data[head:], joined) if head < len(data) else joined

    def _serial(self, data: bytes, crc: int) -> int:
        value = crc ^ self._mask
        for byte in data:
            value = (value >> 8) ^ self._list[(value ^ byte) & 0xFF]
        return value ^ self._mask

    def _lanes(self, rows: NDArray[np.uint8]) -> int:
        columns = np.ascontiguousarray(rows.T).astype(np.uint64)
        state: _Words = np.full(len(rows), self._mask, dtype=np.uint64)
        for column in columns:
            state = (state >> np.uint64(8)) ^ self._table[
                ((state ^ column) & np.uint64(0xFF)).astype(np.intp)
            ]
        state ^= np.uint64(self._mask)
        log2_bytes = _LANE_BYTES.bit_length() - 1
        while len(state) > 1:
            state = self._apply(state[0::2], log2_bytes) ^ state[1::2]
            log2_bytes += 1
        return int(state[0])

    def _apply(self, crcs: _Words, log2_bytes: int) -> _Words:
        """Each CRC as it would be after 2**log2_bytes zero bytes more (initial and final values cancel)."""
        tables = self._shift(log2_bytes)
        result = np.zeros_like(crcs)
        for position, table in enumerate(tables):
            index = (crcs >> np.uint64(8 * position)) & np.uint64(0xFF)
            result ^= table[index.astype(np.intp)]
        return result

    def _make_shift(self, log2_bytes: int) -> NDArray[np.uint64]:
        """(width / 8, 256) tables of the shift by 2**log2_bytes bytes, built by squaring the one below."""
        positions = self.width // 8
        bits: _Words = np.uint64(1) << np.arange(self.width, dtype=np.uint64)
        if log2_bytes == 0:
            images = (bits >> np.uint64(8)) ^ self._table[(bits & np.uint64(0xFF)).astype(np.intp)]
        else:
            images = self._apply(self._apply(bits, log2_bytes - 1), log2_bytes - 1)
        tables = np.zeros((positions, 256), dtype=np.uint64)
        for position in range(positions):
            for bit in range(8):
                half = 1 << bit
                tables[position, half : 2 * half] = tables[position, :half] ^ images[8 * position + bit]
        return tables


CRC32C = Crc(0x82F63B78, 32)
CRC64NVME = Crc(0x9A6C9329AC4BC9B5, 64)
