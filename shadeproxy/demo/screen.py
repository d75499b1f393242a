"""Shows the demo's progress while it works, and its report at the end. This module measures nothing."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from shadeproxy.demo.messages import EpochDone, Event
from shadeproxy.demo.report import Epoch, Report, Run

_MIB = 1024**2


class Bars:
    """Progress bars, one for each step of the demo. If the output is not a terminal, there is only one line
    for each epoch.
    """

    def __init__(self, console: Console, width: int) -> None:
        self._console = console
        self._width = width
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def add(self, title: str, total: float) -> "Bar":
        """Add a bar for a step that begins now."""
        task = self._progress.add_task(title.ljust(self._width), total=total, note="")
        return Bar(self._console, self._progress, task, title)


class Bar:
    """The bar of one step."""

    def __init__(self, console: Console, progress: Progress, task: TaskID, title: str) -> None:
        self._console = console
        self._progress = progress
        self._task = task
        self._title = title

    def advance(self, amount: float = 1) -> None:
        """Add ``amount`` to the progress."""
        self._progress.advance(self._task, amount)

    def show(self, event: Event) -> None:
        """Show the progress of a training, counted in epochs, after one of its events."""
        if isinstance(event, EpochDone):
            note = f"epoch {event.epoch + 1}: accuracy {event.accuracy:.1%}, stall {event.stall_s:.1f} s"
            self._progress.update(self._task, completed=event.epoch + 1, note=note)
            if not self._console.is_terminal:
                self._console.print(f"{self._title}: {note}", highlight=False)
        else:
            self._progress.update(self._task, completed=event.epoch + event.done / event.total)


def comparison(report: Report, titles: Mapping[str, str]) -> Table:
    """Return a table with a row for each run: the accuracy at the end, and means over all epochs but the
    first. The first epoch only fills the cache.
    """
    table = table_of_means(
        "run",
        "hits\nRAM",
        "hits\ndisk",
        "origin\nreads",
        "origin\nMiB",
        "stall\ns",
        "wall\ns",
        "distinct\nsamples",
        "final\naccuracy",
    )
    for run in report.runs:
        table.add_row(titles[run.name], *_cells(run))
    return table


def table_of_means(first: str, *headings: str) -> Table:
    """Return a table for means over epochs, which has no rows yet. ``first``: the heading of the column with
    the names of the rows.
    """
    table = Table(
        title="One epoch, averaged from the second one on",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def findings(report: Report) -> list[str]:
    """Return sentences about the numbers of the report, both good and bad ones."""
    runs = {run.name: run for run in report.runs}
    share = report.cache_bytes / report.dataset.bytes
    said = []
    if "lru" in runs:
        said.append(
            f"LRU drops what a shuffled epoch has still to read: with {share:.0%} of the data cached it"
            f" answers {_hit_ratio(runs['lru']):.1%} of the reads."
        )
    if "default" in runs:
        said.append(
            f"The default policy answers {_hit_ratio(runs['default']):.1%}: it keeps what will be read"
            " soonest, and fetches what is missing before it is asked for."
        )
    if {"shade", "direct"} <= runs.keys():
        said.append(_about_scores(runs["shade"], runs["direct"]))
        said.append(_about_stall(runs["shade"], runs["direct"], report.machine.cores))
    return said


def _about_scores(shade: Run, direct: Run) -> str:
    saved = 1 - _mean(shade, "origin_bytes") / _mean(direct, "origin_bytes")
    read, all_samples = _mean(shade, "distinct_samples"), _mean(direct, "distinct_samples")
    gained = 100 * (shade.epochs[-1].accuracy - direct.epochs[-1].accuracy)
    effect = (
        "the same" if abs(gained) < 0.5 else f"{abs(gained):.1f} points {'higher' if gained > 0 else 'lower'}"
    )
    return (
        f"ShadeProxy with scores answers {_hit_ratio(shade):.1%} from the cache, and a further"
        f" {_share(shade, 'coalesced'):.1%} joined a fetch that was on its way. {saved:.0%} fewer bytes leave"
        " the origin than without a cache. The sampler announces its order: the cache keeps what will be read"
        " soonest, and the rest is fetched before it is asked for. Scores change what is read:"
        f" {read:,.0f} different samples an epoch instead of {all_samples:,.0f}, the important ones several"
        f" times; the accuracy at the end is {effect}. Expect fewer origin bytes of importance sampling, not"
        " better accuracy."
    )


def _about_stall(shade: Run, direct: Run, cores: int) -> str:
    through, straight = _mean(shade, "stall_s"), _mean(direct, "stall_s")
    sentence = (
        f"Training waited {through:.1f} s an epoch for data through the proxy with scores, {straight:.1f} s"
        " without a cache. Loaders decode in that time too: each of them took"
        f" {_mean(shade, 'decode_s'):.1f} s of its core for that."
    )
    if through > straight:
        sentence += (
            f" Proxy, loaders, model and built-in origin share {cores} processor cores, where the way through"
            " the proxy costs more than its hits save."
        )
    return sentence


def _cells(run: Run) -> list[str]:
    return [
        f"{_share(run, 'hits_ram'):.1%}",
        f"{_share(run, 'hits_disk'):.1%}",
        f"{_mean(run, 'origin_requests'):,.0f}",
        f"{_mean(run, 'origin_bytes') / _MIB:.1f}",
        f"{_mean(run, 'stall_s'):.1f}",
        f"{_mean(run, 'wall_s'):.1f}",
        f"{_mean(run, 'distinct_samples'):,.0f}",
        f"{run.epochs[-1].accuracy:.1%}",
    ]


def _later(run: Run) -> Sequence[Epoch]:
    """Return the epochs whose reads can hit: all but the first, which only fills the cache."""
    return run.epochs[1:] or run.epochs


def _mean(run: Run, field: str) -> float:
    epochs = _later(run)
    return float(sum(getattr(epoch, field) for epoch in epochs)) / len(epochs)


def _share(run: Run, field: str) -> float:
    return _mean(run, field) / _mean(run, "requests")


def _hit_ratio(run: Run) -> float:
    return _share(run, "hits_ram") + _share(run, "hits_disk")
