"""Needs of jobs: the speed that a job asks for, and the shares that it gets beside other jobs.

Law: a job has one need at most. It keeps its need until a registration states another one, or gives it up
(``best_effort``). This module measures nothing: an implementation of ``SharesJobs`` decides from measurements
whether a need is feasible.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple, Protocol

from shadeproxy.core.errors import InvalidRequest, NotFeasible
from shadeproxy.core.units import format_count

_KINDS = ("slowdown", "samples_per_s", "deadline_s")
_LITTLE = 1e-3


class JobNeed(NamedTuple):
    """A need; exactly one of the first three fields is set. ``slowdown``: highest allowed ratio of the job's
    time to the time that it would take without waits. ``deadline_s``: the Unix time by which the job wants to
    have read its dataset ``epochs`` times, counted from epoch 0.
    """

    slowdown: float | None = None
    samples_per_s: float | None = None
    deadline_s: float | None = None
    epochs: int = 1

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def words(self) -> str:
        """The need in words."""
        if self.slowdown is not None:
            return f"a slowdown of at most {self.slowdown:g}"
        if self.samples_per_s is not None:
            return f"{format_count(self.samples_per_s, 'sample', 'g')} a second"
        return f"{format_count(self.epochs, 'epoch', 'd')} by its deadline"

    def refusal(self, job: str, would_get: float, needs: float) -> NotFeasible:
        """Return the error for a job that would get fewer samples a second than it ``needs``."""
        part, less = would_get / needs, "less"
        if self.slowdown is not None and part > _LITTLE:
            less = f"a slowdown of {ceil(100 * self.slowdown / part) / 100:g} or more"
        return NotFeasible(
            f"job {job!r} cannot have {self.words} beside the others: it would get"
            f" {format_count(would_get, 'sample', '.4g')} a second, {part:.2f} of it",
            hint=f"ask for {less}, or send best_effort; `shadeproxy plan` tells what a larger cache would"
            " give",
        )


@dataclass(frozen=True, slots=True)
class JobShare:
    """The need of a job in samples a second, and its shares of cache and link. ``need``: the kind of its
    need, None if it has none. ``needs_per_s``: samples per second that the need amounts to. ``got_per_s``:
    samples per second that the job lately got. ``feasible``: True if the need fits beside the needs of other
    jobs; None: not known yet. ``would_get_per_s``: samples per second that the job would get beside the other
    jobs. ``kept``: True if the job lately got what it needs; None: not known yet. ``cache_share``: its share
    of the bytes in the cache. ``link_share``: its share of the bytes that lately came from the origin.
    ``raised``: the factor by which its need raises its weight. ``reason``: the reason for these values, in
    words.
    """

    need: str | None
    needs_per_s: float | None
    got_per_s: float | None
    feasible: bool | None
    would_get_per_s: float | None
    kept: bool | None
    cache_share: float | None
    link_share: float | None
    raised: float
    reason: str


NO_SHARE = JobShare(None, None, None, None, None, None, None, None, 1.0, "nothing is measured")


class SharesJobs(Protocol):
    """Decides which needs are feasible, and shows the share that each job gets."""

    def judge(self, name: str, dataset: str | None, need: JobNeed) -> None:
        """Raise NotFeasible if measurements show that a need does not fit beside the needs of other jobs."""
        ...

    def share_of(self, name: str) -> JobShare:
        """Return the share of a registered job."""
        ...

    def summary(self) -> dict[str, Any]:
        """Return how jobs share the link to the origin and the cache, for the statistics."""
        ...


class NothingShared:
    """A ``SharesJobs`` that admits every need and measures nothing."""

    def judge(self, name: str, dataset: str | None, need: JobNeed) -> None:
        """Admit every need."""

    def share_of(self, _name: str) -> JobShare:
        """Return ``NO_SHARE``, because nothing is measured."""
        return NO_SHARE

    def summary(self) -> dict[str, Any]:
        """Return no statistics."""
        return {}


def need_of(
    *,
    slowdown: float | None,
    samples_per_s: float | None,
    deadline_s: float | None,
    epochs: int | None,
    best_effort: bool,
    has_dataset: bool,
    now_s: float,
) -> JobNeed | None:
    """Return the need that the fields of a registration state; None if they state none. Raises
    InvalidRequest.
    """
    stated = {"slowdown": slowdown, "samples_per_s": samples_per_s, "deadline_s": deadline_s}
    names = [name for name, value in stated.items() if value is not None]
    if len(names) > 1:
        raise InvalidRequest(
            f"{' and '.join(names)}: a job has one need", hint=f"send one of {', '.join(_KINDS)}"
        )
    if epochs is not None and deadline_s is None:
        raise InvalidRequest("epochs belongs to a deadline", hint="send deadline_s too, or leave epochs out")
    if not names:
        return None
    if best_effort:
        raise InvalidRequest(
            f"best_effort gives up a job's need, but {names[0]} states one", hint="send one of the two"
        )
    if deadline_s is not None:
        if deadline_s <= now_s:
            raise InvalidRequest(
                f"deadline_s {deadline_s:.0f} is {now_s - deadline_s:.0f} s in the past",
                hint="deadline_s is a Unix time: for a deadline in 12 hours add 43200 to the time of now",
            )
        if not has_dataset:
            raise InvalidRequest(
                "a deadline needs a dataset, whose samples are counted",
                hint="name it as dataset, or state the need as samples_per_s",
            )
    return JobNeed(slowdown, samples_per_s, deadline_s, epochs or 1)
