"""Results of a run: rows that are judged against their targets, and the file that stores the rows.

Law: ``met`` is true only for a row that was measured and reached its target. A row in any other state
(failed, reference missing, too few cores, not built) shows that state and counts as not met.
"""

import math
from pathlib import Path
from typing import Literal

import msgspec

Status = Literal["measured", "reference missing", "too few cores", "not built", "failed"]
RatioIs = Literal["reference / ours", "ours / reference"]


class Target(msgspec.Struct, frozen=True):
    """A target for a row. The judged figure must be at least ``bound``, or if ``at_least`` is False, at most
    ``bound``.

    ``of``: the figure that is judged, either the row's ratio or our own figure in the row's unit.
    """

    bound: float
    at_least: bool = True
    of: Literal["ratio", "ours"] = "ratio"

    def met(self, *, ours: float, ratio: float | None) -> bool:
        value = ours if self.of == "ours" else ratio
        if value is None or math.isnan(value):
            return False
        return value >= self.bound if self.at_least else value <= self.bound

    def shortfall(self, *, ours: float, ratio: float | None) -> float | None:
        """Return the share of the bound by which the target was missed. None if the target was met or cannot
        be judged, or if the bound is 0.
        """
        value = ours if self.of == "ours" else ratio
        if value is None or not self.bound or self.met(ours=ours, ratio=ratio):
            return None
        return abs(value - self.bound) / self.bound

    def text(self, unit: str) -> str:
        number = f"{'>=' if self.at_least else '<='} {self.bound:g}"
        return f"{number} {unit}" if self.of == "ours" else number


class Measured(msgspec.Struct, frozen=True):
    """Medians of the rounds of both sides. The spreads are the least and the largest round. ``reference``:
    None if the row has no reference.
    """

    ours: float
    reference: float | None = None
    ours_spread: tuple[float, float] | None = None
    reference_spread: tuple[float, float] | None = None
    note: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the results. ``target``: None for a row that is only information; ``met`` of a measured row
    is then None too.

    ``shortfall``: the share of the target's bound by which the row missed it. ``cell``: see ``Planned``.
    """

    suite: str
    name: str
    status: Status
    ours: float | None
    reference: float | None
    unit: str
    ratio: float | None
    ratio_is: RatioIs
    target: str | None
    met: bool | None
    shortfall: float | None
    ours_spread: tuple[float, float] | None = None
    reference_spread: tuple[float, float] | None = None
    note: str = ""
    how: str
    date: str
    cell: tuple[str, str] | None = None


class Doubt(msgspec.Struct, frozen=True):
    """A reason why the numbers of some suites may be less reliable."""

    text: str
    suites: tuple[str, ...]


class Results(msgspec.Struct, frozen=True):
    """The results of one or more runs on one machine. ``date``: ISO 8601, of the latest run."""

    machine: str
    date: str
    rows: tuple[Row, ...]
    doubts: tuple[Doubt, ...] = ()


def merged(earlier: Results | None, now: Results) -> Results:
    """Return ``now``, completed by an earlier run on the same machine: by the rows and doubts of suites that
    did not run now. The suites keep their order.
    """
    ran = {row.suite for row in now.rows}
    if earlier is None or earlier.machine != now.machine or all(row.suite in ran for row in earlier.rows):
        return now
    rows: list[Row] = []
    for suite in dict.fromkeys(row.suite for row in earlier.rows + now.rows):
        rows += [row for row in (now if suite in ran else earlier).rows if row.suite == suite]
    kept = (Doubt(one.text, tuple(s for s in one.suites if s not in ran)) for one in earlier.doubts)
    doubts = tuple(one for one in kept if one.suites) + now.doubts
    return msgspec.structs.replace(now, rows=tuple(rows), doubts=doubts)


def read_results(path: Path) -> Results | None:
    """Return the results of an earlier run; None if the file is missing or has another form."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_results(path: Path, results: Results) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
