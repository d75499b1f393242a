"""The needs of jobs in use, and which of them are admitted.

Law: a need is admitted only while it fits beside those admitted before it. Admission changes only after the
new judgement has held for ten seconds, so that one measurement changes nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from shadeproxy.app.asking import demands_of
from shadeproxy.hints.needs import JobNeed
from shadeproxy.policy.sharing import FIRST_SPARE, Room, fits, least_of_others, most_for

_log = structlog.get_logger(__name__)
JUDGED_S = 10.0
"""Time for which a job is measured before it is judged."""

_MOST_TOLD = 8  # Most needs that do not fit, for which one step finds out what they would get.


@dataclass
class JudgedNeed:
    """The state of one job's need. ``admitted``: it is kept, as far as possible. ``feasible``: it fits beside
    the others by the latest measurement, None before. ``would_get``: samples per second that it would get.
    ``raised``: see ``JobShare``; ``spare``: see policy/sharing.py ``next_spares``. ``off_s``: time for which
    the job has got far less than it needs.
    """

    need: JobNeed
    admitted: bool = True
    feasible: bool | None = None
    would_get: float | None = None
    changed_s: float = 0.0
    raised: float = 1.0
    spare: float = FIRST_SPARE
    off_s: float = 0.0


def admit(
    claims: Mapping[str, JudgedNeed],
    rows: Mapping[str, list[float]],
    needed: Mapping[str, float],
    room: Room,
    now_s: float,
) -> None:
    """Decide which of ``claims`` fit, the earliest first. ``rows``: what each job asks, as for
    ``demands_of``, those with claims included. ``needed``: the need of each claim in samples per second.
    """
    names = list(rows)
    demands = demands_of(list(rows.values()))
    demands.need[:] = math.nan
    least, told = least_of_others(demands, room), 0
    for name, claim in claims.items():
        at = names.index(name)
        demands.need[at] = needed[name] or math.nan
        claim.feasible, claim.would_get = fits(demands, least, room), needed[name]
        if not claim.feasible and (told := told + 1) <= _MOST_TOLD:
            claim.would_get = most_for(demands, at, least, room)
        if claim.feasible == claim.admitted:
            claim.changed_s = now_s
        elif now_s - claim.changed_s >= JUDGED_S:
            claim.admitted, claim.changed_s = claim.feasible, now_s
            _log.info("need admitted" if claim.feasible else "need does not fit", job=name)
        if not claim.admitted:
            demands.need[at] = math.nan
