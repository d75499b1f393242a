"""Results of a run: rows that are judged against their targets, and the file that keeps them.

Law: ``met`` is true only for a row that was measured and reached its target; every other state (failed,
reference missing, not built) says so and counts as not met.
"""

import math
from pathlib import Path
from typing import Literal

import msgspec

Status = Literal["measured", "reference missing", "too few cores", "not built", "failed"]
RatioIs = Literal["reference / ours", "ours / reference"]


class Target(msgspec.Struct, frozen=True):
    """A bound on a row. ``bound``: must not be exceeded, in the direction that ``at_least`` gives.

    ``of``: the figure that is judged, the row's ratio or our figure itself (in the row's unit).
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
        """Return the share of the bound by which the target was missed; None when met or not judged."""
        value = ours if self.of == "ours" else ratio
        if value is None or self.met(ours=ours, ratio=ratio):
            return None
        return abs(value - self.bound) / self.bound

    def text(self, unit: str) -> str:
        number = f"{'>=' if self.at_least else '<='} {self.bound:g}"
        return f"{number} {unit}" if self.of == "ours" else number


class Measured(msgspec.Struct, frozen=True):
    """Medians of both sides, and the least and largest of their rounds. ``reference`` None: there is none."""

    ours: float
    reference: float | None = None
    ours_spread: tuple[float, float] | None = None
    reference_spread: tuple[float, float] | None = None
    note: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the results. ``target`` None: for information, never judged; then ``met`` is None too.

    ``shortfall``: the share of its bound by which the target was missed. ``cell``: as in ``Planned``.
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
    """A reason why the numbers of some suites may be worth less."""

    text: str
    suites: tuple[str, ...]


class Results(msgspec.Struct, frozen=True):
    """``date``: ISO 8601, of the latest run in it."""

    machine: str
    date: str
    rows: tuple[Row, ...]
    doubts: tuple[Doubt, ...] = ()


def merged(earlier: Results | None, now: Results) -> Results:
    """Return ``now`` with the rows of other suites that an earlier run on the same machine found, each in its
    place, and with the reasons to doubt these.
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
    """Return an earlier run's results; None where there are none of this form."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_results(path: Path, results: Results) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
