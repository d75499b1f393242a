"""The verdict on an overload run: every check of the run, with its finding."""

from collections.abc import Iterator, Sequence

from shadeproxy_bench.reliability.kit.verdict import Check
from shadeproxy_bench.reliability.kit.watch import Sample
from shadeproxy_bench.reliability.overload.phases import GREEDY, MODEST_CONNECTIONS, STAMPEDE_BYTES, scaled
from shadeproxy_bench.reliability.overload.run import MIB, Plan, Played, Run
from shadeproxy_bench.reliability.overload.told import CUT, HASTY, RIGHT, TOO_SLOW, WRONG, Side

CONNECTION_BYTES = 64 * 1024
"""Memory that is allowed for a client's connection on average, besides the pages that the ledger counts."""
LEAST_TIMES = 4.0
"""Factor by which a connection of the modest client must get more service than one of the greedy client. If
the proxy served requests in order of arrival, both would get the same. If it serves clients in turns, each of
the modest client's few connections gets more.
"""


def memory_bytes(sample: Sample) -> int:
    """Return the resident memory, without the segments of the RAM tier, which are pages of tmpfs."""
    return sample.rss_anon_bytes + sample.rss_file_bytes


def bound_bytes(plan: Plan, idle: Sample, connections: int) -> int:
    """Return the most that ``memory_bytes`` may be with ``connections`` connections.

    The ledger, bounded by ``cache.inflight``, counts pages in flight. As much again may be kept by slow
    readers of stored pages and by the allocator.
    """
    return memory_bytes(idle) + 2 * plan.inflight_bytes + connections * CONNECTION_BYTES


def judge(plan: Plan, run: Run) -> list[Check]:
    """Return all checks of the run, which passed unless one of them is False."""
    by_name = {one.name: one for one in run.played}
    sides = [(one.name, who, side) for one in run.played for who, side in one.told.sides.items()]
    wrong = sum(side.outcomes.get(WRONG, 0) for _, _, side in sides)
    hasty = sum(side.outcomes.get(HASTY, 0) for _, _, side in sides)
    right = sum(side.outcomes.get(RIGHT, 0) for _, _, side in sides)
    return [
        Check("wrong bytes", not wrong, f"{wrong} of {right:,} answers"),
        Check("every 503 is SlowDown with Retry-After", not hasty, f"{hasty} were not"),
        *_phases(plan, by_name),
        *(_memory(plan, run.idle, one) for one in run.played),
        *(_rest(one, run.idle) for one in run.played),
        Check("complaints in the proxy's log", not run.complaints, f"{len(run.complaints)} kinds of lines"),
    ]


def _phases(plan: Plan, by_name: dict[str, Played]) -> Iterator[Check]:
    for name, whos in _UNHARMED.items():
        if name in by_name:
            yield _unharmed(name, {who: by_name[name].told.sides[who] for who in whos})
    if (one := by_name.get("slow writers")) is not None:
        crowd = one.told.sides["crowd"]
        ended = {how: crowd.outcomes.get(how, 0) for how in (TOO_SLOW, CUT)}
        found = ", ".join(f"{how}: {count}" for how, count in ended.items())
        yield Check("slow writers are told so or cut off", all(ended.values()), found)
    if (one := by_name.get("stampede")) is not None:
        reads = {key: count for key, count in one.asked.reads.items() if key.startswith(f"{STAMPEDE_BYTES}/")}
        found = f"{sum(reads.values())} reads of {len(reads)} pages"
        yield Check("stampede: one origin read per page", set(reads.values()) == {1}, found)
    if (one := by_name.get("greedy beside modest")) is not None and "alone at a slow origin" in by_name:
        yield _fair(by_name["alone at a slow origin"], one, scaled(GREEDY, plan.scale))


_UNHARMED = {
    "idle and busy": ("idle, first read", "readers", "idle, one more read"),
    "slow readers": ("modest",),
    "slow writers": ("modest", "modest, a write"),
    "header flood": ("modest",),
    "big body": ("upload",),
    "stampede": ("herd",),
    "big cold objects": ("readers",),
    "greedy beside modest": ("modest", "greedy"),
    "origin slower than demand": ("hits",),
    "afterwards": ("readers",),
}
"""The kinds of clients that must get only right answers, by phase."""


def _unharmed(name: str, sides: dict[str, Side]) -> Check:
    bad = {who: {k: n for k, n in side.outcomes.items() if k != RIGHT} for who, side in sides.items()}
    right = sum(side.outcomes.get(RIGHT, 0) for side in sides.values())
    found = "; ".join(f"{who}: {outcomes}" for who, outcomes in bad.items() if outcomes)
    passed = not found and all(side.outcomes.get(RIGHT, 0) for side in sides.values())
    return Check(f"{name}: nothing but right answers", passed, f"{right:,} right{found and ', ' + found}")


def _fair(alone: Played, beside: Played, connections: int) -> Check:
    reference, modest, greedy = (
        alone.told.sides["readers"].rate,
        beside.told.sides["modest"].rate,
        beside.told.sides["greedy"].rate,
    )
    times = modest / MODEST_CONNECTIONS / (greedy / connections) if greedy else 0.0
    found = f"{modest:.1f} a second (alone {reference:.1f}), {times:.1f} times as much a connection"
    return Check(
        f"each connection of modest gets {LEAST_TIMES:g} times greedy's", times >= LEAST_TIMES, found
    )


def _memory(plan: Plan, idle: Sample, one: Played) -> Check:
    peak = max(map(memory_bytes, one.samples))
    bound = bound_bytes(plan, idle, most(one.samples, "connections"))
    return Check(f"{one.name}: memory", peak <= bound, f"{peak / MIB:,.0f} of {bound / MIB:,.0f} MiB")


def _rest(one: Played, idle: Sample) -> Check:
    rested = one.rested
    found = ", ".join(
        f"{name} {getattr(idle, name)} -> {getattr(rested, name)}" for name in ("sockets", "others", "tasks")
    )
    when = "" if one.rested_after_s is None else f", after {one.rested_after_s:.0f} s"
    return Check(f"{one.name}: comes to rest", one.rested_after_s is not None, found + when)


def most(samples: Sequence[Sample], field: str) -> int:
    """Return the largest value of a field over ``samples``."""
    return int(max(getattr(sample, field) for sample in samples))
