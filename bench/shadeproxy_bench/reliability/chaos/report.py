"""Makes the page docs/reliability/chaos.md about all chaos runs. The results that it shows are kept as JSON
beside the page, one run for each seed.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.chaos.run import Run
from shadeproxy_bench.reliability.chaos.verdict import judge
from shadeproxy_bench.reliability.kit.verdict import check_lines, checks_table, counts_table, failed
from shadeproxy_bench.tables import table

_ABOUT = """\
A proxy with two worker processes, 32 MiB of RAM and 64 MiB of disk, in front of an origin with three times as
much data. The origin's answers go wrong on the wire, and the calls by which the tiers are read and written
fail, at the rates in `wire.py` and `proxy.py` of `reliability/chaos`. Every ten seconds or so something
is killed, and started again. Clients are raw sockets (whole objects, ranges of every form, conditions, slow
readers, pipelines, hang-ups, overwrites), the SDK by locate and by the batch call, and boto3 (reads, uploads
whole and in parts, CopyObject, with its own retries). Each byte is compared; each answer must be a version
between the last one acknowledged before the request and the newest (objects of two sizes have a rule
`revalidate`, so changes at the origin itself count as acknowledged too); each request has an upper bound of
time (75 s a raw one, 150 s a batch of the SDK, 200 s a call of boto3 with its retries). Afterwards the faults
end, and every object is read once more by a client that forgives nothing."""
_LIMITS = """\
The proxy cannot know that an origin's bytes are not those that were stored. It verifies the checksum of
every object that it fetches in one piece, where the origin gives one, before the last byte goes on; so bits
are flipped, and `Content-Length` is too short, only where there is a checksum, or a `Content-Range` that says
otherwise. A flipped bit in an answer without one looks like any other bit: over plain HTTP only TCP's
checksum guards it, over TLS the record's.

Faults of the media are injected where the coordinator reads and writes segments; workers read the
same files by calls of their own, which are not wrapped. They are those that a system call can report or hide;
bits that rot on the medium are planted by the crash rounds."""
_SEEN = """\
`ok`: right, and whole. `cut`: the connection broke before the answer was whole. A status and a code: an S3
error that clients repeat. `right bytes, total as the origin claimed`: a part was answered, with the size in
`Content-Range` that the origin had announced, before its body ended too early. `connection refused`: no
proxy listened, it was being started again. `no answer in time`: the SDK tried for 30 s, or wanted to register
a dataset while no proxy listened."""


def summary(run: Run) -> list[str]:
    """Return the result of ``run`` as lines for the terminal."""
    counts = run.counts
    return [
        *check_lines(judge(run)),
        f"  requests  {counts.kinds}",
        f"  outcomes  {counts.outcomes}",
        f"   sources  {counts.sources}",
        f"     kills  {run.kills}",
        f"  injected  {run.injected}",
        f"   noticed  {run.noticed}",
        *(f"     fault  {fault}" for fault in (*counts.faults, *run.swept.faults, *run.faults)),
        *(f" complaint  {text}" for text in run.complaints[:20]),
    ]


def keep(run: Run, directory: Path) -> Path:
    """Store ``run`` among the results in ``directory``, and rewrite the page. Return the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    results = directory / "chaos.json"
    runs = msgspec.json.decode(results.read_bytes(), type=list[Run]) if results.exists() else []
    runs = sorted([one for one in runs if one.seed != run.seed] + [run], key=lambda one: one.seed)
    results.write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1) + b"\n")
    page = directory / "chaos.md"
    page.write_text(markdown(runs))
    return page


def markdown(runs: Sequence[Run]) -> str:
    """Return the Markdown of the page about ``runs``."""
    minutes = sum(run.seconds for run in runs) / 60
    requests = sum(run.counts.requests for run in runs)
    compared = sum(run.counts.compared_bytes for run in runs)
    passed = not any(failed(judge(run)) for run in runs)
    kills: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    for run in runs:
        kills.update(run.kills)
        injected.update(run.injected)
    verdict = (
        f"**{'Passed' if passed else 'Failed'}**: {minutes:.0f} minutes with {len(runs)} seeds, "
        f"{sum(injected.values()):,} faults and {sum(kills.values()):,} kills; {requests:,} requests, "
        f"{compared / 1e9:,.1f} GB compared byte by byte."
    )
    lines = [
        "# Chaos",
        "",
        *(f"    make chaos SEED={run.seed} MINUTES={run.seconds / 60:.0f} WRITE=1" for run in runs),
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine.describe()}. This page is written by the runs.",
        "",
        _ABOUT,
        "",
        verdict,
        "",
    ]
    for run in runs:
        lines += [f"## Seed {run.seed}, {run.seconds / 60:.0f} minutes", "", *checks_table(judge(run)), ""]
    lines += ["## What was injected, and how often", ""]
    lines += counts_table("fault", "times", injected)
    lines += counts_table("killed", "times", kills)
    lines += ["## What clients saw", "", *_seen(runs), "", "## What it does not show", "", _LIMITS, ""]
    return "\n".join(lines)


def _seen(runs: Sequence[Run]) -> list[str]:
    outcomes: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    for run in runs:
        outcomes.update(run.counts.outcomes)
        kinds.update(run.counts.kinds)
        noticed.update(run.noticed)
    total = sum(outcomes.values()) or 1
    rows = [[name, f"{count:,}", f"{count / total:.3%}"] for name, count in outcomes.most_common()]
    lines = [
        _SEEN,
        "",
        *table(["outcome", "times", "share"], rows),
        "",
        *counts_table("request", "times", kinds),
        *counts_table(
            "the proxy counted",
            "times",
            {name: count for name, count in noticed.items() if not name.startswith("evicted")},
        ),
    ]
    return lines[:-1]
