"""``python -m shadeproxy_bench.studies.plan`` runs every setting, predicts its times, and writes
docs/studies/plan/.

With ``--again``, it only predicts the settings of the last run once more, for use after a change of the
model.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from shadeproxy.demo.processes import termination_as_interrupt
from shadeproxy_bench import machine
from shadeproxy_bench.predictions import sdk_runs as by_sdk
from shadeproxy_bench.predictions.choices import Choice, choose_all
from shadeproxy_bench.predictions.compare import compare_all
from shadeproxy_bench.predictions.grid import points, run_all
from shadeproxy_bench.predictions.runs import BATCH, RATE_PER_S, SAMPLE_BYTES, SAMPLES, Found
from shadeproxy_bench.predictions.sdk_runs import measured_sdk
from shadeproxy_bench.studies.by_hand import kept
from shadeproxy_bench.studies.plan.report import by_group, by_setting, plots
from shadeproxy_bench.tables import table

_TITLE = "# Study: how much cache do I need, predicted and measured"
_ERRORS = (
    "Error of the epoch's time; beside it that of max(compute, missed bytes / link), with the bytes that were"
    " really missed, and how much the slowest and the fastest later epoch of a run differ:"
)
_CHOICES = (
    "Choice of the cheapest run of 30 epochs under a deadline, by its real time and cost (made-up prices, by"
    " which faster is dearer); among {} configurations, and again among those without an announced order:"
)


class Kept(msgspec.Struct, frozen=True):
    """The content of results.json. ``load``: mean load average of the machine over the runs. ``sdk``: the
    runs with the SDK's dataset.
    """

    machine: str
    load: float
    found: list[Found]
    sdk: list[Found]


def main() -> None:
    parser = argparse.ArgumentParser(description="Predictions of shadeproxy plan, against measured epochs.")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/plan"))
    parser.add_argument("--quick", action="store_true", help="fewer settings")
    parser.add_argument("--again", action="store_true", help="predict the settings of the last run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.json"
    began = time.monotonic()
    if options.again:
        kept_runs = msgspec.json.decode(results.read_bytes(), type=Kept)
    else:
        kept_runs = _run(quick=options.quick)
        results.write_bytes(msgspec.json.format(msgspec.json.encode(kept_runs), indent=1) + b"\n")
    path = options.out / "README.md"
    path.write_text(markdown(kept_runs, options.out))
    _say(f"written: {path}; {time.monotonic() - began:.0f} s")


def _run(*, quick: bool) -> Kept:
    found, loads = list[Found](), list[float]()
    with termination_as_interrupt():
        for one in run_all(points(quick=quick)):
            found.append(one)
            loads.append(os.getloadavg()[0])
            _say(f"{one.point.name}: {one.epoch_s:.2f} s, stall {one.stall_share:.0%}")
        sdk = list(measured_sdk())
    return Kept(machine.describe(), sum(loads) / len(loads), found, sdk)


def markdown(runs: Kept, out: Path) -> str:
    """Return the Markdown of the whole page. The text that a person wrote below the tables of the page in
    ``out`` is kept.
    """
    compared, choices = compare_all(runs.found) + compare_all(runs.sdk), choose_all(runs.found)
    picture = plots(compared, out)
    parts = [
        _TITLE,
        (
            f"`python -m shadeproxy_bench.studies.plan`; {runs.machine}; mean load average {runs.load:.1f}."
            f" {SAMPLES} samples of {SAMPLE_BYTES / 1000:.0f} KB, a loop of {RATE_PER_S:.0f} samples/s with"
            f" batches of {BATCH}, modelled; a running proxy and an origin that sleeps. The profile is one"
            f" run: {runs.found[0].point.name}, {len(runs.found[0].profile.epochs)} epochs. From it all"
            " other settings are predicted; the mean of their later epochs counts."
        ),
        (
            f"Batches by the SDK have a profile of their own, {runs.sdk[0].point.name}: {by_sdk.SAMPLES}"
            f" samples, {by_sdk.RATE_PER_S:.0f} samples/s, torch's DataLoader with batches of {by_sdk.BATCH},"
            f" and an origin whose latencies have a lognormal spread of {by_sdk.SPREAD:g}."
        ),
        _ERRORS,
        by_group(compared),
        f"![predicted against measured]({picture.name})",
        _CHOICES.format(choices.configurations),
        _choices(
            {
                "plan": choices.plan,
                "always the cheapest": choices.cheapest,
                "always the biggest": choices.biggest,
            }
        ),
        "## All settings",
        by_setting(compared),
    ]
    return "\n\n".join([*parts, kept(out / "README.md")]) + "\n"


def _choices(ways: dict[str, Sequence[Choice]]) -> str:
    rows = []
    for name, choices in ways.items():
        regrets = [one.regret for one in choices if one.regret is not None and not one.late]
        rows.append(
            [
                name,
                str(len(choices)),
                str(sum(bool(one.late) for one in choices)),
                str(sum(one.regret is None for one in choices)),
                f"{fmean(regrets):.1%}" if regrets else "-",
                f"{max(regrets):.1%}" if regrets else "-",
            ]
        )
    head = ["", "deadlines", "missed", "nothing chosen", "dearer than the best, mean", "at most"]
    return "\n".join(table(head, rows))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
