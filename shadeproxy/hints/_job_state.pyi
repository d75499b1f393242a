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
class UsesState: ...
class ReaderState: ...

def by_reader(
    contexts: list[Any],
    readers: dict[str, Any],
    jobs: dict[str, Any],
    trackers: dict[str, Any],
    scoreboard: dict[str, Any],
    tick: float,
    many: int,
) -> tuple[list[Any], list[Any]]: ...
def note_all(
    groups: list[tuple[Any, Any, int | None, list[int], list[int]]],
    first: int,
    now_s: float,
    tick: float,
    explained: list[int],
) -> tuple[int, int]: ...

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
