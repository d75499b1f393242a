"""The page of a run of kills."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.kills.run import Found
from shadeproxy_bench.reliability.kit.verdict import counts_table
from shadeproxy_bench.tables import table

_ABOUT = """\
A proxy with two workers that accept clients and a coordinator that decides, as real processes before a slow
origin. In each round 96 clients read 100 new objects (4 KiB to one page of 4 MiB), each client three of them
over new connections, so that the same page is wanted by several clients of both workers. At a random moment
a process is lost: a random worker by kill -9, or by SIGSTOP for up to a second, or the coordinator by
kill -9. Afterwards every object is read once more.

The run fails with: a wrong byte, or an answer that seems whole and is not; a failed read of a client that
was not connected to the killed worker; any failed read where a worker was only stopped; a page that the
origin was asked for more than twice, or more than once where nothing was killed; readings, bytes in flight
or connections that do not go back to zero after a round; a tier that has other bytes than all the objects
read."""

_COLUMNS = """\
`fetching`: pages that the lost process was fetching at that moment, or with the coordinator all processes.
The other columns are reads, by how they ended."""


def markdown(found: Found) -> str:
    """Return the page."""
    outcomes = {loss: dict(sorted(counts.items())) for loss, counts in found.outcomes.items()}
    names = sorted({name for counts in outcomes.values() for name in counts})
    rows = [
        [loss, f"{found.rounds[loss]:,}", f"{found.fills[loss]:,}", *_cells(outcomes[loss], names)]
        for loss in sorted(outcomes)
    ]
    total = _sum(found.outcomes.values())
    sums = [f"{sum(found.rounds.values()):,}", f"{sum(found.fills.values()):,}", *_cells(total, names)]
    when = f"{datetime.now(UTC):%Y-%m-%d}"
    verdict = "Passed" if not found.failures else f"Failed, {len(found.failures)} times"
    return "\n".join(
        [
            "# Kills",
            "",
            f"    make kills ROUNDS={sum(found.rounds.values())} SEED={found.seed}",
            "",
            f"{when}, {machine.describe()}, {found.seconds / 60:.0f} minutes. Written by the run.",
            "",
            f"**{verdict}**: {sum(found.rounds.values()):,} rounds; {sum(total.values()):,} reads compared.",
            "",
            _ABOUT,
            "",
            _COLUMNS,
            "",
            *table(["lost", "rounds", "fetching", *names], [*rows, ["all", *sums]]),
            "",
            *counts_table("times that the origin was asked for a page", "pages", found.pages),
        ]
    )


def _cells(counts: Mapping[str, int], names: list[str]) -> list[str]:
    return [f"{counts.get(name, 0):,}" for name in names]


def _sum(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counts in many:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total
