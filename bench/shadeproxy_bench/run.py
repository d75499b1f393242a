"""One run of the bench: measures every requested suite, row by row, then writes the files of results.

A row that cannot be measured never ends the run. Its place in the results gives the reason.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from shadeproxy.core.errors import ConfigError, ShadeProxyError
from shadeproxy.demo.processes import termination_as_interrupt
from shadeproxy_bench import machine
from shadeproxy_bench.faults import NotBuilt, ReferenceMissing, TooFewCores
from shadeproxy_bench.markdown import markdown
from shadeproxy_bench.plan import Planned, Scale, Suite
from shadeproxy_bench.registry import SUITES
from shadeproxy_bench.results import (
    Doubt,
    Measured,
    Results,
    Row,
    Status,
    merged,
    read_results,
    write_results,
)
from shadeproxy_bench.show import row_line, tables
from shadeproxy_bench.words import summary


def run_bench(
    names: Iterable[str], *, quick: bool, out: Path | None, console: Console, only: str = ""
) -> Results:
    """Measure the suites ``names`` (all suites if no name is given), print the rows, and write results.json
    and results.md into ``out``.

    ``only``: measure only rows whose name has this text. Rows of other suites from an earlier run on this
    machine stay in ``out``. Raises ConfigError for an unknown name.
    """
    chosen = select(names)
    machine.raise_descriptor_limit()
    warnings = machine.warnings()
    console.print(f"[bold]{machine.describe()}[/]", highlight=False)
    for warning in warnings:
        console.print(f"[yellow]warning: {warning}[/]", highlight=False)
    began = time.monotonic()
    with termination_as_interrupt():
        rows = tuple(
            measure_all(
                chosen,
                Scale(quick=quick),
                lambda row: console.print(row_line(row), highlight=False, soft_wrap=True),
                only=only,
            )
        )
    doubts = tuple(Doubt(warning, tuple(chosen)) for warning in warnings)
    results = Results(machine.describe(), _now(), rows, doubts)
    console.print(tables(results))
    console.print(f"{summary(results)}; {time.monotonic() - began:.0f} s", highlight=False)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        whole = merged(read_results(out / "results.json"), results)
        write_results(out / "results.json", whole)
        (out / "results.md").write_text(markdown(whole))
        console.print(f"written: {out / 'results.json'}, {out / 'results.md'}", highlight=False)
    return results


def select(names: Iterable[str]) -> dict[str, Suite]:
    """Return the suites ``names`` (all suites if empty), in the order in which suites run. Raises ConfigError
    for an unknown name.
    """
    wanted = list(names) or list(SUITES)
    unknown = [name for name in wanted if name not in SUITES]
    if unknown:
        raise ConfigError(f"--suite: there is no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    return {name: suite for name, suite in SUITES.items() if name in wanted}


def measure_all(
    suites: dict[str, Suite], scale: Scale, watch: Callable[[Row], None], *, only: str = ""
) -> Iterator[Row]:
    """Measure and yield every row whose name has the text ``only``, suite by suite. ``watch`` is called with
    each row as soon as it is measured.
    """
    for name, suite in suites.items():
        for planned in (one for one in suite(scale) if only in one.name):
            row = measure(name, planned)
            watch(row)
            yield row


def measure(suite: str, planned: Planned) -> Row:
    """Return the row of one measurement, even if the measurement failed."""
    try:
        return _judged(suite, planned, planned.measure())
    except ReferenceMissing as error:
        return _without_number(suite, planned, "reference missing", str(error))
    except TooFewCores as error:
        return _without_number(suite, planned, "too few cores", str(error))
    except NotBuilt as error:
        return _without_number(suite, planned, "not built", str(error))
    except ShadeProxyError as error:
        return _without_number(suite, planned, "failed", str(error))
    except Exception as error:  # noqa: BLE001  a defect fails its own row and the run, but no other row
        return _without_number(suite, planned, "failed", f"{type(error).__name__}: {error}")


def _judged(suite: str, planned: Planned, found: Measured) -> Row:
    ratio = None
    if found.reference:
        first, second = found.reference, found.ours
        if planned.ratio_is == "ours / reference":
            first, second = second, first
        ratio = first / second if second else None
    target = planned.target
    return Row(
        suite=suite,
        name=planned.name,
        status="measured",
        ours=found.ours,
        reference=found.reference,
        unit=planned.unit,
        ratio=ratio,
        ratio_is=planned.ratio_is,
        target=target.text(planned.unit) if target else None,
        met=target.met(ours=found.ours, ratio=ratio) if target else None,
        shortfall=target.shortfall(ours=found.ours, ratio=ratio) if target else None,
        ours_spread=found.ours_spread,
        reference_spread=found.reference_spread,
        note=found.note,
        how=planned.how,
        date=_now(),
        cell=planned.cell,
    )


def _without_number(suite: str, planned: Planned, status: Status, note: str) -> Row:
    return Row(
        suite=suite,
        name=planned.name,
        status=status,
        ours=None,
        reference=None,
        unit=planned.unit,
        ratio=None,
        ratio_is=planned.ratio_is,
        target=planned.target.text(planned.unit) if planned.target else None,
        met=False,
        shortfall=None,
        note=note,
        how=planned.how,
        date=_now(),
        cell=planned.cell,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
