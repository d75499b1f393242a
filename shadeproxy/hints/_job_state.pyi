from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

SOURCE: Final[str]
SOURCES: Final[tuple[str, ...]]

_Column: TypeAlias = NDArray[np.float64]
_Ids: TypeAlias = NDArray[np.int64]

def learn_constants(
    never: int,
    uses: int,
    least_weight: float,
    next_ticks: float,
    settled: tuple[int, int, int, float],
    trusted: tuple[float, float],
    averages: tuple[int, float, float, float, float, float, float],
) -> bool: ...

class ActivityState: ...
class TrackerState: ...
class UsesState:
    def distances(
        self, rows: _Ids, start: _Column, over: _Column, step: _Column, wait: _Column, passed: float
    ) -> _Column: ...

class FewReads:
    def __init__(self, activity: Any, order: Any, scores: Any, count: int) -> None: ...
    def note(
        self,
        samples: list[int],
        epoch: int | None,
        now_s: float,
        tick: float,
        in_use: bool,
        uses: Any,
        number: int,
    ) -> int: ...

class HintColumns:
    def __init__(self, rows: _Column) -> None: ...
    def put(
        self,
        owner: int,
        next_at: memoryview | None,
        scores: memoryview | None,
        mine: memoryview | None,
    ) -> None: ...
    def columns(self, owners: _Ids, samples: _Ids) -> _Column: ...
