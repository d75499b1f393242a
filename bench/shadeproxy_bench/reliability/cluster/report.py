"""Makes the page docs/reliability/cluster.md about the runs, and keeps the file with the result of each
seed.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.cluster.faults import (
    CUT_ALL,
    CUT_ENGINE,
    CUT_HALVES,
    CUT_PAIR,
    ENGINE_KILL,
    ENGINE_STOP,
    FLUSH,
    JOIN,
    KILL,
    LEAVE,
    SHARES,
    STOP,
)
from shadeproxy_bench.reliability.cluster.found import Found, summed
from shadeproxy_bench.reliability.kit.verdict import counts_table
from shadeproxy_bench.tables import table

NAME = "cluster"
LEASE_S: Final = 0.5
_SUMS: Final = {
    "kill -9 of a proxy": (KILL,),
    "SIGSTOP of a proxy": (STOP,),
    "partition": (CUT_PAIR, CUT_HALVES, CUT_ENGINE, CUT_ALL),
    "restart of the empty engine, or FLUSHALL": (ENGINE_KILL, FLUSH),
    "SIGSTOP of the engine": (ENGINE_STOP,),
    "join": (JOIN,),
    "leave": (LEAVE,),
}
"""The kinds of faults that are counted together, for each line of the first table that sums up faults."""
_COUNTS = (
    *("faults", "reads", "writes", "sources", "notes", "hints"),
    *("violations", "complaints", "networks"),
)
_ABOUT = """\
Four proxies of one cluster (or as many as `NODES`) as real processes, each with 64 MiB of RAM, and at times
one more; a memory origin that is slow now and then, and carries some writes out up to two seconds late;
Redis. Each proxy and Redis has a network namespace of its own, and a partition loses their packets; where
namespaces are not permitted, each link is a relay that can be cut. Eight readers and six writers ask random
proxies for 200 objects of 4 KB to 300 KB (pages have 128 KiB), 24 of them most of the time: GET, parts and
HEAD; PUT, multipart uploads, CopyObject, DELETE and DeleteObjects. Each object has one writer at a time.
Meanwhile each round does one to three faults, which overlap. `KILLS` is the share of kills among them,
beside 25 of all other kinds; it is 8 where the line of the seed above names none. After a quarter of the
rounds, no fault happens for so long that the proxies trust their caches again: they check each affected
object for some seconds after a fault (10 with leases of 0.5 s) instead of a minute, which is long enough
for the late writes of this run (`cluster/proxy.py`); the limits that make them store a part alone are as much
shorter than usual as their pages are; all else is the product as it is.

A read may return what a write made unless another write, which the origin carried out later, was answered
with success before the read began. Each body names its object and its write, and is compared byte by byte.
The run fails with: a read that returns anything else; an error that S3 clients do not repeat; a read that
has no answer after 20 s of repeating it, or after 14 leases if they are longer; a request that takes 45 s
and ten leases; a write that was answered and not carried out, or refused with 503 and carried out, or
repeated after a newer one was answered; a process that does not end with status 0. After every ten rounds
the faults pause: within four leases and 20 s all proxies must have the same settled view with all of them,
and take writes; then, often after the time of these checks, each object is read, and must be as at the
origin. Meanwhile a trainer sends the hints of a job with 70,000 samples to random proxies. In each pause,
all proxies must have its manifest, its orders and its scores."""


def results(directory: Path) -> Path:
    """Return the path of the file with the results in a directory."""
    return directory / f"{NAME}.json"


def load(directory: Path) -> list[Found]:
    """Return the results that are kept in a directory."""
    path = results(directory)
    return msgspec.json.decode(path.read_bytes(), type=list[Found]) if path.exists() else []


def keep(found: Found, directory: Path) -> None:
    """Store the result of a seed among the results in ``directory``, and rewrite the page. Runs of other
    seeds may call this at the same time.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        runs = sorted(
            [one for one in load(directory) if one.seed != found.seed] + [found], key=lambda one: one.seed
        )
        draft = results(directory).with_suffix(".draft")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1) + b"\n")
        draft.replace(results(directory))
        (directory / f"{NAME}.md").write_text(markdown(runs))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other processes from writing the results in a directory while the block runs."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def markdown(runs: Sequence[Found]) -> str:
    """Return the Markdown of the page about the runs."""
    total = {name: summed([getattr(one, name) for one in runs]) for name in _COUNTS}
    verdict = "Passed" if not total["violations"] else f"Failed, {sum(total['violations'].values())} times"
    sums = (
        f"{sum(one.rounds for one in runs):,} rounds with {len(runs)} seeds in"
        f" {sum(one.seconds for one in runs) / 60:,.0f} minutes, {sum(total['faults'].values()):,} faults;"
        f" {sum(total['reads'].values()):,} reads and {sum(total['writes'].values()):,} writes judged"
    )
    lines = [
        "# Cluster",
        "",
        *(f"    make chaos-cluster ROUNDS={one.rounds} SEED={one.seed}{_options(one)}" for one in runs),
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine.describe()}. Written by the runs.",
        "",
        f"**{verdict}**: {sums}.",
        "",
        *_sums(runs),
        "",
        _ABOUT,
        "",
        *counts_table("network", "rounds", total["networks"]),
        *counts_table("fault", "times", total["faults"]),
        *counts_table("outcome of a read", "times", total["reads"]),
        *counts_table("`x-shade-cache` of a read", "times", total["sources"]),
        *counts_table("outcome of a write", "times", total["writes"]),
        *counts_table("noted", "times", total["notes"]),
        *counts_table("hints", "times", total["hints"]),
        *counts_table("the longest time", "seconds", _longest(runs)),
    ]
    if total["complaints"]:
        lines += counts_table("error in a log", "times", total["complaints"])
    if total["violations"]:
        lines += counts_table("violation", "times", total["violations"])
        lines += [f"- seed {one.seed}: {failure}" for one in runs for failure in one.failures[:20]] + [""]
    return "\n".join(lines).rstrip("\n") + "\n"


def sums_of(runs: Sequence[Found]) -> dict[str, int]:
    """Return the sums of the counts of all runs."""
    faults = summed([one.faults for one in runs])
    counts = {"rounds": sum(one.rounds for one in runs)}
    counts |= {name: sum(faults.get(kind, 0) for kind in kinds) for name, kinds in _SUMS.items()}
    for name in ("reads", "writes", "violations"):
        counts[name] = sum(summed([getattr(one, name) for one in runs]).values())
    return counts


def _sums(runs: Sequence[Found]) -> list[str]:
    """Return the table of the sums over all seeds, with a column for each lease if there are several."""
    columns: dict[str, Sequence[Found]] = {}
    leases = sorted({one.lease_s for one in runs})
    if len(leases) > 1:
        for lease_s in leases:
            columns[f"lease of {lease_s:g} s"] = [one for one in runs if one.lease_s == lease_s]
    columns["times"] = runs
    rows = [[name, *(f"{sums_of(part)[name]:,}" for part in columns.values())] for name in sums_of(runs)]
    return table(["all seeds", *columns], rows)


def _options(found: Found) -> str:
    """Return the options of a seed's command that differ from the defaults."""
    plain = Found(found.seed, LEASE_S, found.pages, kills=SHARES[KILL])
    given = (
        ("LEASE", f"{found.lease_s:g}", found.lease_s != plain.lease_s),
        ("KILLS", found.kills, found.kills != plain.kills),
        ("WORKERS", found.workers, found.workers != plain.workers),
        ("NODES", found.nodes, found.nodes != plain.nodes),
    )
    return "".join(f" {name}={value}" for name, value, is_given in given if is_given)


def _longest(runs: Sequence[Found]) -> dict[str, str]:
    times: dict[str, float] = {}
    for one in runs:
        for name, seconds in one.slowest.items():
            times[name] = max(seconds, times.get(name, 0.0))
    return {name: f"{seconds:.1f}" for name, seconds in times.items()}
