"""Reports of an attack run: lines for the terminal, the files of attack-report/, and the page
docs/reliability/attack.md.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.attack.run import ATTACKS, Found
from shadeproxy_bench.reliability.attack.side import Violation
from shadeproxy_bench.reliability.kit.verdict import Check, checks_table
from shadeproxy_bench.tables import table

_ABOUT = """\
Real proxies with one and three processes, over plain HTTP and TLS, each before an origin of raw sockets that
records every request byte by byte. There are four attacks. *Smuggling*: pipelined requests with odd and wrong
heads and bodies, cut into segments at every byte and at random places; each body holds the text of a request.
*Refused early*: clients that go on sending behind an upload that is refused. *Broken origin*: answers that
break off, contradict themselves, never end or come twice, for thirteen kinds of operations. *Stuck clients*:
heads, bodies and answers that never end, half-closed and reset connections, and a flood of connections. A
victim reads cached objects and uploads others all the time."""
_FAILS = """\
The run fails with: a request at the origin that its sender did not mean so, or a field of another request; a
right request that is refused; bytes that are no answer, an answer to another request, or a short body that
looks whole; an answer that a client loses because it sent more; an abort where the origin gave no answer, so
that an error could be sent; an object that is read wrongly once the origin is right again; a failed request
of the victim; a connection that is open beyond its time; connections, tasks, descriptors, memory or slots
that do not come back; an error in a log."""
_MOST_SHOWN, _MOST_OF_KIND, _MOST_TEXT = 12, 80, 500
_NUMBERS = re.compile(r"[0-9]+")
_QUOTED = re.compile(r"b?'[^']*'|\"[^\"]*\"")
_NAMED = re.compile(r"request [0-9]+ \(.*?\)(?= )")


def kinds_of(violations: Sequence[Violation]) -> dict[tuple[str, str], list[Violation]]:
    """Return violations by attack and kind of violation, over all cases and proxies."""
    kinds: dict[tuple[str, str], list[Violation]] = {}
    for one in violations:
        kind = _NUMBERS.sub("N", _QUOTED.sub("...", _NAMED.sub("a request", one.what)))[:_MOST_OF_KIND]
        kinds.setdefault((one.attack, kind), []).append(one)
    return kinds


def lines(found: Found) -> Iterator[str]:
    """Yield the result for the terminal: of each kind of violation, one with its bytes."""
    for (attack, kind), some in kinds_of(found.judged).items():
        cases = Counter(one.case for one in some)
        yield f"VIOLATION  {attack}: {kind}: {len(some)} times, {dict(Counter(one.side for one in some))}"
        shown = "; ".join(f"{case} ({count})" for case, count in cases.most_common(_MOST_SHOWN))
        yield f"    in {len(cases)} cases: {shown}"
        first = some[0]
        yield f"    as {first.case}: {first.what[:_MOST_TEXT]}"
        yield from (f"    sent      {text[:_MOST_TEXT]}" for text in first.sent[:3])
        yield f"    received  {first.received[:_MOST_TEXT]}"
        if first.detail:
            yield f"    {first.detail[:_MOST_TEXT]}"
    for check in judge(found):
        yield f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.found}"
    excused = len(found.violations) - len(found.judged)
    yield f"attackers and origins were late by up to {found.late_s:.1f} s, which excuses {excused} violations"
    for side in found.sides:
        yield f"{side.name}: {side.counts}"
        yield f"    answers to the smuggling attack {side.answers}"
        yield f"    the victim's medians, ms {side.medians_ms}"
        yield f"    at the origin at once, before and after {side.capacity}"
        yield f"    memory, MiB, before and after {side.memory_mib[0]:.0f}, {side.memory_mib[1]:.0f}"
        yield f"    answers to clients that closed their side {side.half_closed}"
        if side.left:
            yield f"    no time was left for {side.left} scripts of the broken origin"


def judge(found: Found) -> list[Check]:
    """Return one check for each attack."""
    counts = Counter(one.attack for one in found.judged)
    made: Counter[str] = Counter()
    for side in found.sides:
        made.update(side.counts)
    names = dict.fromkeys((*ATTACKS, "isolation", "rest", "log"))
    return [
        Check(name, not counts[name], f"{counts[name]} violations, {made[name]:,} made") for name in names
    ]


def keep(found: Found, out: Path) -> None:
    """Write the result as JSON, and the violations as text, into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"seed-{found.seed}.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    texts = ["\n".join(_text(one)) for one in found.violations]
    (out / f"seed-{found.seed}.txt").write_text("\n".join(texts))


def _text(one: Violation) -> Iterator[str]:
    yield f"{one.side}: {one.attack}: {one.case}"
    yield f"  {one.what}"
    yield from (f"  sent {text}" for text in one.sent)
    yield f"  received {one.received}"
    yield f"  {one.detail}\n"


def markdown(found: Found) -> str:
    """Return the Markdown of the page about the run."""
    verdict = "Passed" if not found.judged else f"Failed, {len(found.judged)} violations"
    rows = [
        [
            side.name,
            *(f"{side.counts.get(name, 0):,}" for name in ATTACKS),
            f"{side.medians_ms.get('quiet', 0):.1f}",
            f"{max(side.medians_ms.values(), default=0):.1f}",
        ]
        for side in found.sides
    ]
    kinds = [[*kind, f"{len(some)}", some[0].what] for kind, some in kinds_of(found.judged).items()]
    return "\n".join(
        [
            "# Attack",
            "",
            f"    make attack MINUTES={found.seconds / 60:.0f} SEED={found.seed} WRITE=1",
            "",
            f"{datetime.now(UTC):%Y-%m-%d}, {machine.describe()}. This page is written by the run.",
            "",
            f"**{verdict}**, {found.seconds / 60:.0f} minutes.",
            "",
            _ABOUT,
            "",
            _FAILS,
            "",
            *checks_table(judge(found)),
            "",
            *table(
                ["proxy", *ATTACKS, "victim's median, ms: quiet", "worst phase"],
                rows,
            ),
            "",
            *(table(["attack", "kind of violation", "times", "the first one"], kinds) if kinds else ()),
        ]
    )
