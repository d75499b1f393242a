"""``python -m shadeproxy.studies.hit_ratios``: every scenario, then docs/studies/hit-ratios/;
some 10 minutes.
"""

import argparse
import time
from pathlib import Path

import msgspec

from shadeproxy.bench import machine
from shadeproxy.simulate.announced import parse_announce
from shadeproxy.simulate.plots import require_matplotlib, write_plot
from shadeproxy.simulate.run import NAMES, Question, parse_caches, simulate
from shadeproxy.studies.hit_ratios.report import Finding, markdown
from shadeproxy.studies.hit_ratios.scenarios import CACHES, SCENARIOS, Scenario


def main() -> None:
    parser = argparse.ArgumentParser(description="Hit ratios of every policy, workload and cache size.")
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one scenario; nothing is written")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/hit-ratios"))
    options = parser.parse_args()
    require_matplotlib()
    found = [
        (scenario, _run(scenario, options.objects, options.seed))
        for scenario in SCENARIOS
        if options.only in {None, scenario.name}
    ]
    if options.only is not None:
        for _, finding in found:
            for row in finding.result.rows:
                _say(f"{row.policy} {row.cache:.0%}: {row.hit_ratio:.2%}")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path, picture = options.out / "README.md", options.out / "hit-ratios.png"
    write_plot([(scenario.words, finding.result.rows) for scenario, finding in found], picture)
    findings = msgspec.json.format(msgspec.json.encode([finding for _, finding in found]), indent=1)
    (options.out / "hit-ratios.json").write_bytes(findings + b"\n")
    path.write_text(
        markdown(
            found,
            machine=machine.describe(),
            objects=options.objects,
            seed=options.seed,
            picture=picture.name,
            earlier=path.read_text() if path.exists() else "",
        )
    )
    _say(f"written: {path}")


def _run(scenario: Scenario, objects: int, seed: int) -> Finding:
    begin, trace = time.process_time(), scenario.trace(objects, seed)
    result = simulate(
        Question(trace, NAMES, parse_caches(CACHES, trace), parse_announce(scenario.announce), seed=seed)
    )
    seconds = time.process_time() - begin
    _say(f"{scenario.name}: {len(trace.ids):,} reads, {seconds:.0f} s")
    return Finding(scenario.name, scenario.words, scenario.announce, round(seconds, 1), result)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  this is what the command is for


if __name__ == "__main__":
    main()
