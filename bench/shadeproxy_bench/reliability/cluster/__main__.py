"""Run a cluster under faults, print the result, exit with 1 if there was a violation: ``make
chaos-cluster``.
"""

import argparse
import sys
from pathlib import Path

from shadeproxy_bench.reliability.cluster import namespaces
from shadeproxy_bench.reliability.cluster.faults import KILL, SHARES
from shadeproxy_bench.reliability.cluster.found import Found
from shadeproxy_bench.reliability.cluster.namespaces import NAMESPACES
from shadeproxy_bench.reliability.cluster.nodes import LOCAL, OWNED
from shadeproxy_bench.reliability.cluster.relays import RELAYS
from shadeproxy_bench.reliability.cluster.report import LEASE_S, keep, load, markdown
from shadeproxy_bench.reliability.cluster.run import Plan, play
from shadeproxy_bench.reliability.kit.command import attempt, begin, conclude, say

_OUT = Path("chaos-cluster-report")
_AUTO = "auto"


def main() -> int:
    parser = argparse.ArgumentParser(description="Several proxies that share one cache, under faults.")
    parser.add_argument(
        "--rounds", type=int, default=100, help="rounds of faults of each seed, with those of earlier runs"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="end each seed after this time at the latest"
    )
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="one after another")
    parser.add_argument("--lease", type=float, default=LEASE_S, help="seconds of a lease")
    parser.add_argument(
        "--kills",
        type=int,
        default=SHARES[KILL],
        help=f"share of kills, beside {sum(SHARES.values()) - SHARES[KILL]} of all other faults",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes of each proxy")
    parser.add_argument("--nodes", type=int, default=4, help="proxies, beside one that joins and leaves")
    parser.add_argument("--pages", choices=(OWNED, LOCAL), default=OWNED, help="local must fail")
    parser.add_argument(
        "--network",
        choices=(_AUTO, NAMESPACES, RELAYS),
        default=_AUTO,
        help="auto: network namespaces where they are permitted, otherwise relays that can be cut",
    )
    parser.add_argument(
        "--out", type=Path, default=_OUT, help="keep violations and logs of a failed run here"
    )
    parser.add_argument("--write", type=Path, help="go on with the totals of this directory, and keep them")
    options = parser.parse_args()
    network = _network(options.network)
    if network is None:
        return 1
    begin()
    say(f"network: {network}")
    plan = Plan(options.rounds, options.pages, options.out, most_s=60 * options.minutes, network=network)
    runs = []
    for seed in options.seed:
        fresh = Found(
            seed,
            options.lease,
            options.pages,
            kills=options.kills,
            workers=options.workers,
            nodes=options.nodes,
        )
        ended = _play(fresh, plan, options.write)
        if ended is None:
            return 1
        runs.append(ended)
    problems = [
        f"seed {one.seed}: {problem}" for one in runs for problem in one.failures or list(one.violations)
    ]
    return conclude(problems, "cluster", markdown(runs), None)


def _play(fresh: Found, plan: Plan, directory: Path | None) -> Found | None:
    """Play the rounds of one seed that are not yet among the results in ``directory``. Return the result of
    the seed. Return None if that seed was run with other options, or if a process did not start.
    """
    kept = load(directory) if directory else []
    found = next((one for one in kept if one.seed == fresh.seed), fresh)
    if _kind(found) != _kind(fresh):
        options = f"--lease {found.lease_s:g} --pages {found.pages} --kills {found.kills}"
        options += f" --workers {found.workers} --nodes {found.nodes}"
        say(f"error: seed {found.seed} was run with {options}")
        return None
    if found.rounds:
        say(f"seed {found.seed} goes on after {found.rounds} rounds")

    def save(now: Found) -> None:
        if directory is not None:
            keep(now, directory)

    ended = attempt(lambda: play(found, plan._replace(save=save), say))
    if ended is not None:
        save(ended)
    return ended


def _kind(found: Found) -> tuple[float, str, int, int, int]:
    return found.lease_s, found.pages, found.kills, found.workers, found.nodes


def _network(wanted: str) -> str | None:
    """Return the kind of network to use. If namespaces are wanted and permitted, start the program again in a
    namespace. Return None if only namespaces are wanted and they are not permitted.
    """
    if wanted == RELAYS:
        return RELAYS
    if not namespaces.entered():
        why = namespaces.refusal()
        if not why:
            sys.stdout.flush()
            namespaces.enter()
        say(f"this machine permits no network namespaces: {why}")
        return RELAYS if wanted == _AUTO else None
    return NAMESPACES


if __name__ == "__main__":
    sys.exit(main())
