"""Makes the page of the study, with its tables. The text that a person wrote below the tables is kept when
they are made again.
"""

import msgspec

from shadeproxy.simulate.run import NAMES, Result
from shadeproxy_bench.studies.by_hand import kept_of
from shadeproxy_bench.studies.hit_ratios.scenarios import Scenario
from shadeproxy_bench.tables import table

_TITLE = "# Study (a): hit ratio by policy, workload and cache size"


class Finding(msgspec.Struct, frozen=True):
    """The result of one scenario. ``seconds``: processor time that the simulation took."""

    scenario: str
    words: str
    announce: str
    seconds: float
    result: Result


def markdown(
    found: list[tuple[Scenario, Finding]],
    *,
    machine: str,
    objects: int,
    seed: int,
    picture: str,
    earlier: str,
) -> str:
    """Return the Markdown of the whole page. ``earlier``: the text of the previous page."""
    parts = [
        _TITLE,
        (
            f"`python -m shadeproxy_bench.studies.hit_ratios --objects {objects} --seed {seed}`; {machine}."
            f" Objects of one size, {objects:,} of them. Hit ratios from each job's second epoch on. `min` is"
            " the exact clairvoyant, which knows the whole trace; every other policy knows what the title of"
            " its table says, and only `default` looks at announced orders."
        ),
        f"![hit ratio against cache size]({picture})",
        "## Promised and found",
        _promises(found),
    ]
    for scenario, finding in found:
        parts += [f"## {_capital(scenario.words)}", _table(finding.result)]
    return "\n\n".join([*parts, kept_of(earlier)]) + "\n"


def _promises(found: list[tuple[Scenario, Finding]]) -> str:
    rows = []
    for scenario, finding in found:
        ratio = {(row.policy, round(row.cache, 4)): row.hit_ratio for row in finding.result.rows}
        for share, policy, least in scenario.promises:
            got = ratio[policy, share]
            verdict = "reached" if got >= least else "**missed**"
            shown = (least, got, ratio["lru", share], ratio["min", share])
            rows.append([scenario.words, f"{share:.0%}", *(f"{one:.1%}" for one in shown), verdict])
    return "\n".join(table(["workload", "cache", "promised", "found", "lru", "min", ""], rows))


def _table(result: Result) -> str:
    shares = sorted({row.cache for row in result.rows})
    ratio = {(row.policy, row.cache): row.hit_ratio for row in result.rows}
    head = ["policy", *(f"{share:.0%}" for share in shares)]
    # A stored result may be older than a policy, so list only the policies that the result has.
    names = [name for name in NAMES if any(row.policy == name for row in result.rows)]
    lines = table(head, ([name, *(f"{ratio[name, share]:.1%}" for share in shares)] for name in names))
    distinct = result.rows[0].distinct
    return "\n".join([*lines, "", f"{result.reads:,} reads, {distinct:,.0f} distinct objects an epoch."])


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]
