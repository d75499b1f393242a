from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

SOURCE: Final[str]
SOURCES: Final[tuple[str, ...]]

_Column: TypeAlias = NDArray[np.float64]
_Index: TypeAlias = NDArray[np.intp]

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
