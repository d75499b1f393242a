from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

SOURCE: Final[str]
SOURCES: Final[tuple[str, ...]]

_Column: TypeAlias = NDArray[np.float64]
_Index: TypeAlias = NDArray[np.intp]
_Hashes: TypeAlias = NDArray[np.uint64]
_Numbers: TypeAlias = NDArray[np.uint32]
_Bytes: TypeAlias = NDArray[np.uint8]

def learn_constants(edges: _Column, states: int, gap_groups: int, most_reads: int) -> bool: ...
def expose(
    exposure: _Column,
    expected: _Column,
    hazards: _Column,
    prefixes: _Index,
    states: _Index,
    since: _Column,
    until: _Column,
) -> None: ...
def gittins(survives: _Column, held: _Column, prices: _Column, best: _Column, repaid: _Column) -> None: ...

class GhostKernels:
    def __init__(
        self, tag: _Numbers, last: _Numbers, gap: _Bytes, reads: _Bytes, state: _Bytes, prefix: _Bytes
    ) -> None: ...
    def read_many(self, reads: list[tuple[int, int, float]], prefix_of: _Index) -> None: ...
    def find_many(self, pages: _Hashes, tick: float) -> tuple[_Column, _Column, _Index, _Index, _Index]: ...
    def put_many(
        self, pages: _Hashes, last: _Column, gap: _Column, reads: _Index, state: _Index, prefix: _Index
    ) -> None: ...
    def rates(
        self, object_hashes: _Hashes, numbers: _Numbers, tick: float, candidates: _Column
    ) -> _Column: ...

class HistoryKernels:
    def __init__(self, ghosts: GhostKernels) -> None: ...
    def bind(self, last: _Column, gap: _Column, reads: _Index, state: _Index) -> None: ...
    def rates(
        self,
        slots: _Index,
        displacing: int,
        tick: float,
        groups: NDArray[np.int32],
        prefix_of: _Index,
        rates: _Column,
        candidates: _Column,
    ) -> _Column: ...
    def enter(self, slots: _Index, object_hashes: _Hashes, numbers: _Numbers, tick: float) -> None: ...
    def exchange(
        self,
        slots: _Index,
        object_hashes: _Hashes,
        numbers: _Numbers,
        tick: float,
        old_hashes: _Hashes,
        old_numbers: _Numbers,
        groups: NDArray[np.int32],
        prefix_of: _Index,
    ) -> None: ...

class SampleKernels:
    def __init__(
        self, groups: _Index, states: _Index, reads: _Index, last: _Column, gap: _Column, seen: _Column
    ) -> None: ...
    def observe(
        self,
        at: dict[int, int],
        seed: int,
        most: int,
        pages: _Hashes,
        groups: _Index,
        ticks: _Column,
        lasts: _Column,
        first: int,
        found: _Index,
        ages: _Column,
        known: int,
    ) -> tuple[int, int]: ...
