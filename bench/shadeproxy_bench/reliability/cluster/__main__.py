"""Run a cluster under faults, print the result, exit with 1 for a violation: ``make chaos-cluster``."""

import argparse
import sys
from pathlib import Path

from shadeproxy_bench.reliability.cluster.found import Found
from shadeproxy_bench.reliability.cluster.nodes import LOCAL, OWNED
from shadeproxy_bench.reliability.cluster.report import keep, load, markdown
from shadeproxy_bench.reliability.cluster.run import Plan, play
from shadeproxy_bench.reliability.kit.command import attempt, begin, conclude, say

_OUT = Path("chaos-cluster-report")


def main() -> int:
    parser = argparse.ArgumentParser(description="Several proxies that share one cache, under faults.")
    parser.add_argument(
        "--rounds", type=int, default=100, help="rounds of faults, with those of earlier runs"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="end after this time at the latest"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease", type=float, default=0.5, help="seconds of a lease")
    parser.add_argument("--pages", choices=(OWNED, LOCAL), default=OWNED, help="local must fail")
    parser.add_argument(
        "--out", type=Path, default=_OUT, help="keep violations and logs of a failed run here"
    )
    parser.add_argument("--write", type=Path, help="go on with the totals of this directory, and keep them")
    options = parser.parse_args()
    begin()
    kept = load(options.write) if options.write else []
    fresh = Found(options.seed, options.lease, options.pages)
    found = next((one for one in kept if one.seed == options.seed), fresh)
    if options.write is not None and found.rounds:
        say(f"seed {options.seed} goes on after {found.rounds} rounds")

    def save(now: Found) -> None:
        if options.write is not None:
            keep(now, options.write)

    plan = Plan(options.rounds, options.pages, options.out, save, 60 * options.minutes)
    ended = attempt(lambda: play(found, plan, say))
    if ended is None:
        return 1
    save(ended)
    return conclude([*ended.failures] or [*ended.violations], "cluster", markdown([ended]), None)


if __name__ == "__main__":
    sys.exit(main())
