"""Makes the page docs/reliability/kills.md about a run."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.kills.run import Found
from shadeproxy_bench.reliability.kit.verdict import counts_table
from shadeproxy_bench.tables import table

_ABOUT = """\
A proxy with two workers that accept clients and a coordinator that decides, as real processes before a slow
origin. In each round 96 clients read 100 new objects (4 KiB to two pages of 4 MiB), each client three of them
over new connections, so that the same page is wanted by several clients of both workers. One of the objects
is read only in eight short parts, which the proxy fetches and stores alone; of three, only the last bytes are
read (`bytes=-n`). At a random moment a process is lost: a random worker by kill -9, or by SIGSTOP for up to a
second, or the coordinator by kill -9. Meanwhile 20 other objects (4 KB to two pages), which the proxy may
keep for ever, are overwritten up to three times each, and 24 clients read them, the long ones also in parts.
Afterwards all is read once more.

The run fails with: a wrong byte, or an answer that seems whole and is not; a version older than one whose
upload was answered, or, after a round, another one than the origin has; an upload of which the origin got
another body; a failed read or upload of a client that was not connected to the killed worker (a read may
break off if its object was overwritten meanwhile); any that failed where a worker was only stopped (but for
reads of two pages of an object that was overwritten meanwhile); a page or part that the origin was asked for
more than twice, or more than once where nothing was killed (twice as often for the first page of an object of
two pages: a worker gives its answer up, and the coordinator asks again); readings, bytes in flight or
connections that do not go back to zero after a round; a tier that has other bytes than all that was read."""

_COLUMNS = """\
`fetching` and `uploading` count the pages that the lost process was fetching and the uploads that it was
forwarding at that moment; if the coordinator was lost, those of all processes. The columns after them count
reads and uploads by how they ended. `right`, `cut`, `cut, overwritten` (the read broke off, and its object
was overwritten meanwhile) and `cut, two pages overwritten` (the same of a read of two pages) are reads;
`written` and `upload cut` are uploads; `connection refused` may be either."""


def markdown(found: Found) -> str:
    """Return the Markdown of the page about the run whose result is ``found``."""
    outcomes = {loss: dict(sorted(counts.items())) for loss, counts in found.outcomes.items()}
    names = sorted({name for counts in outcomes.values() for name in counts})
    rows = [[*_counts(found, loss), *_cells(outcomes[loss], names)] for loss in sorted(outcomes)]
    total = _sum(found.outcomes.values())
    sums = [f"{sum(counts.values()):,}" for counts in (found.rounds, found.fills, found.uploads)]
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
            f"**{verdict}**: {sums[0]} rounds; {sum(total.values()):,} reads and uploads judged.",
            "",
            _ABOUT,
            "",
            _COLUMNS,
            "",
            *table(
                ["lost", "rounds", "fetching", "uploading", *names],
                [*rows, ["all", *sums, *_cells(total, names)]],
            ),
            "",
            *counts_table("times that the origin was asked for a page", "pages", found.pages),
        ]
    )


def _counts(found: Found, loss: str) -> list[str]:
    return [loss, *(f"{counts[loss]:,}" for counts in (found.rounds, found.fills, found.uploads))]


def _cells(counts: Mapping[str, int], names: list[str]) -> list[str]:
    return [f"{counts.get(name, 0):,}" for name in names]


def _sum(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counts in many:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total
