"""Run the attacks, print the result, exit with 1 if there was a violation: ``make attack``."""

import argparse
import sys
from pathlib import Path

from shadeproxy_bench.reliability.attack.report import keep, lines, markdown
from shadeproxy_bench.reliability.attack.run import ATTACKS, KINDS, Plan, attack
from shadeproxy_bench.reliability.kit.command import attempt, begin, keep_page, say


def main() -> int:
    parser = argparse.ArgumentParser(description="Hostile clients and a hostile origin against real proxies.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="names, with commas between them")
    parser.add_argument("--proxies", default="", help="only proxies whose name has this text, as in '3'")
    parser.add_argument("--only", default="", help="only cases whose name has this text")
    parser.add_argument("--out", type=Path, default=Path("attack-report"), help="logs, violations, result")
    parser.add_argument("--write", type=Path, help="write attack.md into this directory")
    options = parser.parse_args()
    attacks = tuple(options.attacks.split(","))
    if unknown := set(attacks) - set(ATTACKS):
        parser.error(f"no such attack: {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    kinds = [kind for kind in KINDS if options.proxies in kind.name]
    plan = Plan(options.seed, options.minutes * 60, kinds, attacks, options.only)
    begin()
    found = attempt(lambda: attack(plan, options.out, say))
    if found is None:
        return 1
    keep(found, options.out)
    for line in lines(found):
        say(line)
    if options.write:
        keep_page(options.write, "attack", markdown(found))
    return int(bool(found.judged))


if __name__ == "__main__":
    sys.exit(main())
