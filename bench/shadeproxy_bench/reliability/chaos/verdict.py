"""The verdict on a chaos run: every check of the run, with its finding."""

from collections.abc import Sequence

from shadeproxy_bench.reliability.chaos.run import Run
from shadeproxy_bench.reliability.kit.bodies import MIB
from shadeproxy_bench.reliability.kit.verdict import Check

_LEAST_S = 240.0
"""Least length, in seconds, of a run that must have injected every kind of fault."""


def judge(run: Run) -> list[Check]:
    """Return all checks of ``run``. The run passed unless a check is False."""
    outcomes, swept = run.counts.outcomes, run.swept
    wrong, errors, hangs = (outcomes.get(name, 0) for name in ("wrong", "error", "hang"))
    right = swept.outcomes.get("ok", 0)
    used = "; ".join(
        f"{tier}: {run.tier_bytes[tier] / MIB:.1f} of {capacity / MIB:.0f} MiB"
        for tier, capacity in run.tier_capacity_bytes.items()
    )
    return [
        Check(
            "wrong bytes, wrong versions, short answers that looked whole",
            wrong == 0,
            f"{wrong} of {run.counts.requests:,} answers",
        ),
        Check("errors that S3 clients do not repeat", errors == 0, f"{errors}"),
        Check("hangs", hangs == 0, f"{hangs}"),
        Check(
            "every object right once the faults were over",
            right == swept.requests > 0,
            f"{right:,} of {swept.requests:,}",
        ),
        Check("processes ended, started and stayed as they should", not run.faults, _processes(run)),
        Check("error lines and tracebacks in the proxy's log", not run.complaints, _some(run.complaints)),
        Check(
            "nothing under way at the end",
            not run.readings and not run.inflight_bytes,
            f"{run.readings} reads, {run.inflight_bytes} bytes in flight",
        ),
        Check(
            "capacity kept",
            all(run.tier_bytes[tier] <= capacity for tier, capacity in run.tier_capacity_bytes.items()),
            used,
        ),
        _all_injected(run),
    ]


def _all_injected(run: Run) -> Check:
    name = "every kind of fault was injected"
    # EROFS is rare, because a single EROFS switches the tier off. A run may therefore have none by chance.
    missing = [kind for kind, count in run.injected.items() if not count and "EROFS" not in kind]
    if run.seconds < _LEAST_S and missing:
        return Check(name, None, f"not judged: the run is shorter than {_LEAST_S / 60:.0f} min")
    found = f"{sum(run.injected.values()):,} faults of {len(run.injected) - len(missing)} kinds"
    return Check(name, not missing, found if not missing else f"{found}; not: {', '.join(missing)}")


def _processes(run: Run) -> str:
    kills = sum(run.kills.values())
    return f"{_some(run.faults)} of {kills} did not; the slowest start took {run.slowest_start_s:.0f} s"


def _some(texts: Sequence[str]) -> str:
    first = f": {texts[0][:300]}" if texts else ""
    return f"{len(texts)}{first}".replace("\n", " / ").replace("|", "/")
