"""``python -m shadeproxy_bench.studies.hit_ratios`` simulates every scenario and writes
docs/studies/hit-ratios/. It takes some 10 minutes.
"""

import argparse
import time
from pathlib import Path

import msgspec

from shadeproxy.simulate.hints import parse_announce
from shadeproxy.simulate.plots import require_matplotlib, write_plot
from shadeproxy.simulate.run import NAMES, Question, parse_caches, simulate
from shadeproxy_bench import machine
from shadeproxy_bench.studies.hit_ratios.report import Finding, markdown
from shadeproxy_bench.studies.hit_ratios.scenarios import CACHES, SCENARIOS, Scenario


def main() -> None:
    parser = argparse.ArgumentParser(description="Hit ratios of every policy, workload and cache size.")
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one scenario; nothing is written")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/hit-ratios"))
    parser.add_argument(
        "--resume", action="store_true", help="keep the workloads that --out has, make the rest"
    )
    options = parser.parse_args()
    require_matplotlib()
    if options.only is not None:
        for row in _run(_scenario(options.only), options.objects, options.seed).result.rows:
            _say(f"{row.policy} {row.cache:.0%}: {row.hit_ratio:.2%}")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "hit-ratios.json"
    earlier = {finding.scenario: finding for finding in (earlier_findings(kept) if options.resume else [])}
    found: list[tuple[Scenario, Finding]] = []
    for scenario in SCENARIOS:
        known = earlier.get(scenario.name)
        found.append((scenario, known or _run(scenario, options.objects, options.seed)))
        findings = msgspec.json.encode([finding for _, finding in found])
        kept.write_bytes(msgspec.json.format(findings, indent=1) + b"\n")
    path, picture = options.out / "README.md", options.out / "hit-ratios.png"
    write_plot([(scenario.words, finding.result.rows) for scenario, finding in found], picture)
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


def earlier_findings(path: Path) -> list[Finding]:
    """Return the stored results of scenarios that were simulated before."""
    return msgspec.json.decode(path.read_bytes(), type=list[Finding]) if path.exists() else []


def _scenario(name: str) -> Scenario:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if name not in known:
        raise SystemExit(f"--only: {name!r} is none of {', '.join(known)}")
    return known[name]


def _run(scenario: Scenario, objects: int, seed: int) -> Finding:
    begin, trace = time.process_time(), scenario.trace(objects, seed)
    result = simulate(
        Question(trace, NAMES, parse_caches(CACHES, trace), parse_announce(scenario.announce), seed=seed)
    )
    seconds = time.process_time() - begin
    _say(f"{scenario.name}: {len(trace.ids):,} reads, {seconds:.0f} s")
    return Finding(scenario.name, scenario.words, scenario.announce, round(seconds, 1), result)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
