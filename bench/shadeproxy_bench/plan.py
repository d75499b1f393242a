"""The parts of a suite: its rows, each measured by a function of its own.

A suite is a generator of rows. Servers that several rows share start in the generator and end with it. A
measurement that gives no number raises ReferenceMissing, TooFewCores, NotBuilt or BenchError, and its row
shows why.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shadeproxy_bench.results import Measured, RatioIs, Target


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run. ``quick``: smaller and shorter, for a first look."""

    quick: bool = False

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 5

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Planned:
    """A row to measure. ``how``: the method, in a sentence for the results. ``cell``: the row's place, (line,
    column), in the grid of its suite; None for a row that stands alone.
    """

    name: str
    unit: str
    target: Target | None
    how: str
    measure: Callable[[], Measured]
    ratio_is: RatioIs = "reference / ours"
    cell: tuple[str, str] | None = None


Suite = Callable[[Scale], Iterator[Planned]]
