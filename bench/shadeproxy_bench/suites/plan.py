"""Predictions of ``shadeproxy plan``, compared with the running proxy: one run is the profile, from which all
other runs are predicted.

Every row uses the same runs (predictions/grid.py, predictions/sdk_runs.py). The errors are compared with
those of the usual bound, max(compute, missed bytes / link), computed with the bytes that were really missed.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from statistics import fmean

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.predictions.choices import Choice, Choices, choose_all
from shadeproxy_bench.predictions.compare import Compared, Group, compare_all, errors_of
from shadeproxy_bench.predictions.grid import measured_grid
from shadeproxy_bench.predictions.runs import BATCH, RATE_PER_S, SAMPLE_BYTES, SAMPLES
from shadeproxy_bench.predictions.speed import ROWS, plan_seconds
from shadeproxy_bench.results import Measured, Target

_MEAN, _WORST = Target(5.0, at_least=False, of="ours"), Target(15.0, at_least=False, of="ours")
_READS = 1_000_000
_REGRET = 0.03


def mean_error(compared: Sequence[Compared]) -> Measured:
    """Return the mean absolute error of the predicted times of epochs, in per cent."""
    found = errors_of(compared)
    note = (
        f"{found.count} settings; epochs of one run differ by {found.spread:.1%};"
        f" max(compute, missed / link) beside it, worst {found.bound_worst:.0%}"
    )
    return Measured(100 * found.mean, 100 * found.bound_mean, note=note)


def worst_error(compared: Sequence[Compared]) -> Measured:
    """Return the worst absolute error of the predicted times of epochs, in per cent."""
    worst = max(compared, key=lambda one: abs(one.error))
    note = f"{worst.point.name}: {worst.epoch_s:.2f} s, predicted {worst.predicted_s:.2f} s"
    return Measured(100 * abs(worst.error), 100 * errors_of(compared).bound_worst, note=note)


def worst_of(compared: Sequence[Compared], value: Callable[[Compared], float], factor: float) -> Measured:
    """Return the largest absolute error of another figure, which ``value`` reads, times ``factor``."""
    worst = max(compared, key=lambda one: abs(value(one)))
    values = sorted(abs(value(one)) for one in compared)
    note = f"median {factor * values[len(values) // 2]:.2g}; worst: {worst.point.name}"
    return Measured(factor * abs(value(worst)), note=note)


def regret(choices: Choices) -> Measured:
    """Return by how many per cent, on average, the real cost of a chosen run exceeds the cost of the best
    run. Runs that are late do not count.
    """
    chosen = [one.regret for one in choices.plan if one.regret is not None and not one.late]
    without = sum(one.regret is None for one in choices.plan)
    note = (
        f"{_all(choices)}; {sum(one > _REGRET for one in chosen)} over {_REGRET:.0%}, worst"
        f" {max(chosen, default=0.0):.0%}; for {without} nothing was chosen; {_others(choices)}"
    )
    return Measured(100 * fmean(chosen) if chosen else float("nan"), note=note)


def late(choices: Choices) -> Measured:
    """Return how many of the chosen runs end after their deadline."""
    count = sum(bool(one.late) for one in choices.plan)
    return Measured(float(count), note=f"{_all(choices)}; {_others(choices)}")


def _all(choices: Choices) -> str:
    return f"{choices.configurations} configurations, {len(choices.plan)} deadlines"


def _others(choices: Choices) -> str:
    return f"the cheapest: {_judged(choices.cheapest)}; the biggest: {_judged(choices.biggest)}"


def _judged(choices: Sequence[Choice]) -> str:
    missed = sum(bool(one.late) for one in choices)
    dear = max((one.regret for one in choices if one.regret is not None and not one.late), default=0.0)
    return f"{missed} late, the others up to {dear:.0%} dearer than the best"


def speed() -> Measured:
    """Return the processor seconds that ``shadeproxy plan`` takes with a recording of ``_READS`` reads."""
    wall_s, cpu_s = plan_seconds(_READS)
    return Measured(cpu_s, note=f"{wall_s:.1f} s of wall time beside other work")


def plan(scale: Scale) -> Iterator[Planned]:
    @cache
    def compared() -> list[Compared]:
        return compare_all(measured_grid(quick=scale.quick))

    @cache
    def by_sdk() -> list[Compared]:
        from shadeproxy_bench.predictions.sdk_runs import measured_sdk  # noqa: PLC0415  imports torch

        return compare_all(measured_sdk())

    def of(*groups: Group) -> list[Compared]:
        some = by_sdk() if groups == ("batches by the SDK",) else compared()
        return [one for one in some if one.group in groups]

    how = (
        f"{SAMPLES} x {SAMPLE_BYTES / 1000:.0f} KB, {RATE_PER_S:.0f} samples/s, batches of {BATCH};"
        " profile: 20 % cache, 8 workers, no order"
    )
    groups: list[tuple[Group, Target]] = [
        ("demand", _MEAN),
        ("prefetch", _MEAN),
        ("prefetch on a full link", _WORST),
        ("batches by the SDK", _MEAN),
    ]
    errors: list[tuple[str, Callable[[Sequence[Compared]], Measured]]] = [
        ("mean", mean_error),
        ("worst", worst_error),
    ]
    for group, mean in groups:
        for name, error in errors:
            target = mean if name == "mean" else _WORST
            measure = partial(_measure, error, of, group)
            yield Planned(f"epochs, {group}: {name} error", "%", target, how, measure, "ours / reference")
    rest: list[tuple[str, str, float, Callable[[Compared], float], float]] = [
        ("origin bytes", "% of the bytes read", 2.0, lambda one: one.bytes_error, 100.0),
        ("hit ratio", "of 1", 0.01, lambda one: one.hit_error, 1.0),
        ("stall", "points", 3.0, lambda one: one.stall_error, 100.0),
    ]
    for name, unit, most, value, factor in rest:
        worst = partial(worst_of, value=value, factor=factor)
        measure = partial(_measure, worst, of, "demand", "prefetch")
        yield Planned(f"{name}: worst error", unit, Target(most, at_least=False, of="ours"), how, measure)
    yield Planned(
        "choice under a deadline: mean regret",
        "%",
        Target(100 * _REGRET, at_least=False, of="ours"),
        how,
        lambda: regret(choose_all(measured_grid(quick=scale.quick))),
    )
    yield Planned(
        "choice under a deadline: late runs",
        "runs",
        Target(0.0, at_least=False, of="ours"),
        how,
        lambda: late(choose_all(measured_grid(quick=scale.quick))),
    )
    yield Planned(
        f"plan of {ROWS} rows from {_READS:,} reads",
        "s CPU",
        Target(60.0, at_least=False, of="ours"),
        "the command line, with a recording of two epochs",
        speed,
    )


def _measure(
    error: Callable[[Sequence[Compared]], Measured], of: Callable[..., list[Compared]], *groups: Group
) -> Measured:
    found = of(*groups)
    if not found:
        raise BenchError("no setting of this kind was run")
    return error(found)
