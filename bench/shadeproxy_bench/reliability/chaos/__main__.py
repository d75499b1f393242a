"""Run chaos, print the result, exit with 1 if a check fails: ``make chaos``."""

import argparse
import sys
from pathlib import Path

import msgspec

from shadeproxy_bench.reliability.chaos.media.rounds import judged, play
from shadeproxy_bench.reliability.chaos.report import keep, summary
from shadeproxy_bench.reliability.chaos.run import Run, chaos
from shadeproxy_bench.reliability.chaos.scene import Plan
from shadeproxy_bench.reliability.chaos.verdict import judge
from shadeproxy_bench.reliability.kit.command import attempt, begin, say
from shadeproxy_bench.reliability.kit.verdict import failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults and kills under real clients, every byte compared.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--severity", type=float, default=1.0, help="multiplies the rates of all faults")
    parser.add_argument("--out", type=Path, default=Path("chaos-report"), help="logs and the result as JSON")
    parser.add_argument("--write", type=Path, help="put the result into chaos.json and chaos.md there")
    parser.add_argument("--keep", type=Path, nargs="*", help="run nothing: put these results there")
    parser.add_argument("--media", action="store_true", help="rounds with media that fail for good, instead")
    parser.add_argument("--rounds", type=int, default=300, help="so many, with --media")
    options = parser.parse_args()
    if options.media:
        return _media(options.rounds, options.seed, options.out)
    if options.keep:
        for path in options.keep:
            page = keep(msgspec.json.decode(path.read_bytes(), type=Run), options.write or options.out)
            say(f"written: {page}")
        return 0
    plan = Plan(options.minutes * 60, options.seed, severity=options.severity)
    begin()
    say(f"{len(plan.data):,} objects, {plan.data.total_bytes / 1e9:.2f} GB, seed {plan.seed}")
    run = attempt(lambda: chaos(plan, options.out, say))
    if run is None:
        return 1
    for line in summary(run):
        say(line)
    (options.out / f"seed-{plan.seed}.json").write_bytes(msgspec.json.encode(run))
    if options.write:
        say(f"written: {keep(run, options.write)}")
    return int(failed(judge(run)))


def _media(rounds: int, seed: int, out: Path) -> int:
    begin()
    run = attempt(lambda: play(rounds, seed, say))
    if run is None:
        return 1
    out.mkdir(parents=True, exist_ok=True)
    (out / f"media-{seed}.json").write_bytes(msgspec.json.encode(run))
    for line in judged(run):
        say(line)
    return int(not run.passed)


if __name__ == "__main__":
    sys.exit(main())
