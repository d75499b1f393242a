"""Makes the page docs/reliability/crash.md."""

from collections import Counter
from datetime import UTC, datetime

from shadeproxy_bench.reliability.crash.board import PHASES, STEPS
from shadeproxy_bench.reliability.crash.damage import KINDS
from shadeproxy_bench.reliability.crash.found import Found
from shadeproxy_bench.tables import table

_HOW = (
    "Each proxy is a real `serve` in a process of its own (forked from one that has the imports done),"
    " with a RAM tier of 512 KiB and a disk tier of 1 MiB, so that it evicts, demotes and promotes all the"
    " time. Three clients read objects and parts, overwrite and delete; the limits that make a proxy store"
    " a part alone are as much shorter than usual as its pages are. A fourth client registers, scores and"
    " announces; a training process reads the cache's own files through the SDK. The directories go from"
    " one proxy to the next. A third of the homes have an origin over HTTP, the others a directory; three"
    " in five never ask the origin again about what they have (`immutable`), so that a page that came back"
    " from the dead would be served; one asks before each answer, and one after some time."
)
_WHEN = (
    "A kill by the clock comes at a random time after the start, under load, or after SIGTERM. A death at a"
    " step is planned at the nth write, hole, truncation, rename or deletion of a file, or inside SQLite:"
    " before it, after it, or with only a part of the bytes written. The proxy notes in shared"
    " memory which requests it works on. After its death the test reads there which of them were under way."
)
_FAILS = (
    "The run fails with: a byte that is of no version, or of one older than what a client was told; an"
    " answer of another status than the object's; segments that take more than the capacity on their medium"
    " at the moment of the death; a page that was there before the death and is not after the start (but for"
    " objects that a client wrote half a minute before: their tombstones drop them, docs/adr/0021); scores"
    " that are torn or older than those read back before; a manifest that no client sent; a start that fails"
    " where nothing was damaged, or without saying what to change; a traceback in the log; a proxy that"
    " hangs; a wrong sample in the training process."
)


def markdown(found: Found, machine: str) -> str:
    """Return the Markdown of the page about the run whose result is ``found``."""
    when = f"{datetime.now(UTC):%Y-%m-%d}, {machine}, {found.seconds / 60:.0f} minutes. Written by the run."
    damaged = sum(found.damaged.values())
    return "\n".join(
        (
            "# Crash",
            "",
            f"    make crash ROUNDS={found.wanted} SEED={found.seed}",
            "",
            when,
            "",
            _summary(found),
            "",
            _HOW,
            "",
            _WHEN,
            "",
            _FAILS,
            "",
            "## Deaths",
            "",
            *_table("meant to end how", found.deaths),
            "",
            "Work under way at the death; several things may be:",
            "",
            *_table("phase", found.phases, (*PHASES, "serving, nothing of this")),
            "",
            "Where it was planned:",
            "",
            *_table("step", found.steps, STEPS),
            "",
            "## Damage",
            "",
            f"{damaged:,} files were damaged between a death and the next start.",
            "",
            *_damage(found),
            "",
            "Its traces in the logs. A damaged body that is never read, or in a hole, is never noticed:",
            "",
            *_table("noticed", found.noticed),
            "",
            f"{found.refused:,} starts were refused, each with a text that says what to change:",
            "",
            *(f"- {count:,} x {text}" for text, count in sorted(found.refusals.items())),
            "",
            "## Answers",
            "",
            "Where the bytes came from, in the first reads after a start and under load:",
            "",
            *_table("answers", found.answers),
            "",
        )
    )


def _summary(found: Found) -> str:
    verdict = "**Passed**" if not found.failures else f"**Failed**: {len(found.failures)} failures"
    survived = min(found.pages_found, found.pages_expected)
    return (
        f"{verdict}: {found.kills:,} proxies killed with kill -9, {found.stops:,} stopped in order,"
        f" {found.starts:,} started in {found.homes:,} homes. {found.compared:,} answers compared with the"
        f" truth, and {found.right_by_sdk:,} samples read by training processes, of which"
        f" {found.sdk_kills:,} were killed; {found.origin_kills:,} times the origin was. Of"
        f" {found.pages_expected:,} pages that had to survive in {found.survival_checks:,} restarts"
        f" {survived:,} did. {found.told:,} rounds of control state were told and read back."
        + (
            f" The run ended at its limit of time, before {found.wanted:,} kills."
            * (found.kills < found.wanted)
        )
    )


def _table(what: str, counts: Counter[str], names: tuple[str, ...] = ()) -> list[str]:
    rows = [(name, counts[name]) for name in names or sorted(name for name in counts if counts[name])]
    return table([what, "count"], [(name, f"{count:,}") for name, count in rows])


def _damage(found: Found) -> list[str]:
    files = sorted({file for file, _ in found.damaged})
    return table(
        ["file", *KINDS], [(file, *(str(found.damaged[file, kind]) for kind in KINDS)) for file in files]
    )
