"""``shadeproxy plan``: makes predictions from options and a profile, and shows them as a table, as JSON or as
a picture.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from shadeproxy.cli.control import ControlClient
from shadeproxy.cli.rows import table_console
from shadeproxy.core.errors import ConfigError
from shadeproxy.core.units import format_count, format_size, parse_duration, parse_size, parse_speed
from shadeproxy.plan.grid import UNKNOWN_ERROR, CacheSize, Plan, Question, Row, make_plan
from shadeproxy.plan.hits import readers, reads_of, simulated_hits, uniform_hits
from shadeproxy.plan.predict import Predictor
from shadeproxy.plan.prices import Prices, load_prices
from shadeproxy.plan.processor import more_processor
from shadeproxy.plan.profile import Loader, Profile, read_profile
from shadeproxy.simulate.plots import require_matplotlib
from shadeproxy.simulate.trace import Trace
from shadeproxy.simulate.trace_file import load_trace

_Value = TypeVar("_Value")
_MOST_ROWS = 1000
_MOST_WORKERS = 1024
_MOST_NAMED = 10
_SLOWEST, _FASTEST = 1e-6, 1e9  # In samples a second.
_SEVERAL, _NEARLY_ALL = 1.5, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of the command, in the form in which the user wrote them."""

    job: str
    profile: Path | None
    trace: Path | None
    caches: str
    workers: str
    orders: str
    epochs: int
    prices: Path | None
    instances: str
    deadline: str
    link: str
    latency: str
    samples_per_s: float
    loader: str


def run_plan(
    client: Callable[[], ControlClient],
    options: PlanOptions,
    *,
    save: Path | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Predict the epochs and runs, and print the result. Raises ConfigError. Raises ShadeProxyError if no
    proxy answers.
    """
    if plot is not None:
        require_matplotlib("leave --plot out")
    profile = _profile(client, options)
    if save is not None:
        _save(profile, save)
    loader = _loader(options.loader) if options.loader else None
    if options.samples_per_s and not _SLOWEST <= options.samples_per_s <= _FASTEST:
        raise ConfigError("--samples-per-s: write the samples of one rank a second, as 2000")
    predictor = Predictor(profile, samples_per_s=options.samples_per_s or None, loader=loader)
    question = _question(options, predictor)
    messages = Console(stderr=True, soft_wrap=True, markup=False)
    trace = None if options.trace is None else _own_reads(options.trace, profile.job, messages)
    if trace is not None and trace.epochs is None and True in question.orders:
        messages.print(
            f"--trace {options.trace}: the recording has no epochs, so hits are computed without an announced"
            " order",
            highlight=False,
        )
    with messages.status("predicting") as status:
        plan = make_plan(
            predictor,
            uniform_hits(profile.policy) if trace is None else simulated_hits(trace, profile.policy),
            question,
            progress=lambda cache: status.update(f"predicting a cache of {cache}"),
        )
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(plan)))
    else:
        _print(plan, question, predictor)
    if plot is not None:
        from shadeproxy.plan.plots import write_plot  # noqa: PLC0415  loads matplotlib

        write_plot(plan, plot)
        messages.print(f"plot: {plot}", highlight=False)


def _profile(client: Callable[[], ControlClient], options: PlanOptions) -> Profile:
    if options.profile is not None:
        if options.job:
            raise ConfigError("--job and --profile: a profile names its own job; write one of them")
        try:
            data = options.profile.read_bytes()
        except OSError as error:
            raise ConfigError(f"--profile {options.profile}: {error.strerror}") from None
        return read_profile(data, f"--profile {options.profile}")
    proxy = client()
    name = options.job or _only_job(proxy)
    return profile_of(proxy, name)


def profile_of(proxy: ControlClient, job: str) -> Profile:
    """Ask a proxy for the profile of a job. Raises UnknownName, and ConfigError if the answer is not a
    profile.
    """
    answer = proxy.get(f"/v1/jobs/{quote(job, safe='')}/profile")
    return read_profile(msgspec.json.encode(answer), f"the profile of job {job!r}")


def _only_job(proxy: ControlClient) -> str:
    names = [job["job"] for job in proxy.get("/v1/jobs")["jobs"]]
    if len(names) != 1:
        known = f"these are registered: {', '.join(names)}" if names else "none is registered at this proxy"
        raise ConfigError(f"name the job to plan for, as --job NAME; {known}")
    return str(names[0])


def _own_reads(path: Path, job: str, messages: Console) -> Trace:
    """Return the reads of ``job`` in a recording, and say if it has others. A trace that names no jobs is
    returned whole. Raises ConfigError if the recording has no read of ``job``.
    """
    trace = load_trace(path)
    names = readers(trace)
    if not names:
        return trace
    named = sorted(names - {job, ""})
    more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    others = [*named[:_MOST_NAMED], *more, *(["clients that name no job"] if "" in names else [])]
    if job not in names:
        raise ConfigError(
            f"--trace {path}: the recording has no read of job {job!r}, only reads of {', '.join(others)};"
            " record again while the job trains, or leave --trace out"
        )
    if others:
        messages.print(
            f"--trace {path}: only the reads of job {job} count here, not those of {', '.join(others)}",
            highlight=False,
        )
    return reads_of(trace, job)


def _save(profile: Profile, path: Path) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(profile)))
    except OSError as error:
        raise ConfigError(f"--save {path}: {error.strerror}") from None


def _question(options: PlanOptions, predictor: Predictor) -> Question:
    profile, prices = predictor.profile, None if options.prices is None else load_prices(options.prices)
    question = Question(
        caches=_list("--cache", options.caches, lambda text: _cache(text, profile)),
        workers=_list("--workers", options.workers or str(predictor.loader.workers), _workers),
        orders=_list("--order", options.orders, _order),
        epochs=options.epochs,
        link=parse_link(options.link) if options.link else None,
        latency_s=_latency(options.latency) if options.latency else None,
        prices=prices,
        instances=_instances(options.instances, prices),
        deadline_s=_deadline(options.deadline) if options.deadline else None,
    )
    rows = len(question.caches) * len(question.workers) * len(question.orders) * len(question.instances)
    if rows > _MOST_ROWS:
        raise ConfigError(
            f"these options make {format_count(rows, 'row')}; at most {_MOST_ROWS:,}: name fewer values"
        )
    return question


def _list(option: str, text: str, parse: Callable[[str], _Value]) -> list[_Value]:
    values = [parse(part.strip()) for part in text.split(",") if part.strip()]
    if not values:
        raise ConfigError(f"{option}: no value is named")
    return values


def _cache(text: str, profile: Profile) -> CacheSize:
    data_bytes = profile.samples * profile.stored_bytes_per_sample
    if text.endswith("%"):
        try:
            share = float(text[:-1]) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise ConfigError(f"--cache: {text!r} is not a share of the data; write 0% to 100%")
        return CacheSize(text, share, share * data_bytes)
    if text.isdecimal() and text != "0":
        raise ConfigError(f'--cache: {text!r} has no unit; write a share as {text}%, or "{text} GiB"')
    try:
        size_bytes = parse_size(text)
    except ValueError:
        raise ConfigError(f'--cache: {text!r} is no size; write a share as 20%, or "8 GiB"') from None
    return CacheSize(text, min(size_bytes / data_bytes, 1.0) if data_bytes else 1.0, size_bytes)


def _workers(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(_MOST_WORKERS)) or int(text) > _MOST_WORKERS:
        raise ConfigError(f"--workers: {text!r} is no number of workers from 0 to {_MOST_WORKERS}")
    return int(text)


def _order(text: str) -> bool:
    if text not in {"no", "announced"}:
        raise ConfigError(f"--order: {text!r} is neither no nor announced")
    return text == "announced"


def _loader(text: str) -> Loader:
    try:
        workers, batch, *more = (int(part) for part in text.split(","))
        prefetch, reads = [*more, *(2, 1)[len(more) :]]
        return msgspec.convert(
            {"workers": workers, "batch_size": batch, "prefetch_factor": prefetch, "reads_at_once": reads},
            Loader,
        )
    except (ValueError, msgspec.ValidationError):
        raise ConfigError(
            f"--loader: {text!r} is not WORKERS,BATCH[,PREFETCH[,READS]]; for example 8,256,2,1"
        ) from None


def parse_link(text: str) -> float:
    try:
        return parse_speed(text)
    except ValueError as error:
        raise ConfigError(f"--link: {error}") from None


def _latency(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--latency: {error}") from None


def _deadline(text: str) -> float:
    try:
        deadline_s = parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--deadline: {error}") from None
    if deadline_s <= 0:
        raise ConfigError(f"--deadline: {text!r} is over already; write how long the run may take, as 12h")
    return deadline_s


def _instances(text: str, prices: Prices | None) -> Sequence[str]:
    if prices is None:
        if text:
            raise ConfigError(
                "--instances needs --prices: the file says what they cost and how fast they are"
            )
        return ("",)
    if not text:
        return tuple(prices.instances)
    return _list("--instances", text, lambda name: _instance(name, prices))


def _instance(name: str, prices: Prices) -> str:
    if name not in prices.instances:
        raise ConfigError(
            f"--instances: the prices name no {name!r}; they name {', '.join(prices.instances)}"
        )
    return name


def _print(plan: Plan, question: Question, predictor: Predictor) -> None:
    console = table_console()
    profile, loader = predictor.profile, predictor.loader
    epochs = len(profile.whole_epochs())
    console.print(
        f"job {profile.job}: {format_count(profile.reads_per_epoch, 'read')} an epoch of"
        f" {format_size(profile.bytes_per_sample)}; measured: {format_count(epochs, 'epoch')} with"
        f" {format_count(loader.workers, 'worker')}, batches of {loader.batch_size}, a cache of"
        f" {format_size(profile.cache_bytes)}",
        highlight=False,
    )
    table = Table(box=SIMPLE_HEAD)
    for name in ("cache", "workers", "order"):
        table.add_column(name)
    for name in ("hits", "epoch", "stall", "origin/epoch", "requests", f"run of {question.epochs}"):
        table.add_column(name, justify="right")
    if question.prices:
        table.add_column("instance")
        table.add_column(plan.currency, justify="right")
    table.add_column("bound by")
    for number, row in enumerate(plan.rows):
        table.add_row(*_cells(row, plan, question, chosen=number == plan.chosen))
    console.print(table)
    for line in _remarks(plan, question, predictor):
        console.print(line, highlight=False)


def _cells(row: Row, plan: Plan, question: Question, *, chosen: bool) -> list[str]:
    cells = [row.cache, str(row.workers), "announced" if row.announced else "no"]
    error = f" ±{row.error:.0%}" if plan.error is not None else ""
    cells += [
        f"{row.hit_ratio:.1%}",
        f"{_time(row.epoch_s)}{error}",
        f"{row.stall_share:.0%}",
        format_size(row.origin_bytes),
        f"{row.requests:,.0f}",
        _time(row.run_s),
    ]
    if question.prices and row.cost:
        cells += [row.instance, f"{row.cost.total:,.2f}"]
    marks = [*([", outside the profile"] if row.outside else []), *([" <- chosen"] if chosen else [])]
    return [*cells, f"{row.bound_by}{''.join(marks)}"]


def _remarks(plan: Plan, question: Question, predictor: Predictor) -> list[str]:
    remarks, profile = [], predictor.profile
    if profile.samples and profile.reads_per_epoch > _SEVERAL * profile.samples:
        remarks.append(
            f"an epoch has {format_count(profile.reads_per_epoch, 'read')} of"
            f" {format_count(profile.samples, 'sample')}: if these were"
            " several epochs, give the loader a sampler of the SDK (or shade.announce(sampler)), and call its"
            " set_epoch before each"
        )
    elif profile.samples and profile.reads_per_epoch < _NEARLY_ALL * profile.samples:
        remarks.append(
            f"the longest measured epoch has {format_count(profile.reads_per_epoch, 'read')} of"
            f" {format_count(profile.samples, 'sample')}: if it is not over yet, plan again when it is"
        )
    if plan.error is None:
        waited = " in which training waited" if len(profile.whole_epochs()) > 1 else ""
        remarks.append(
            f"one epoch{waited} was measured, so the error of these numbers is not known:"
            f" {UNKNOWN_ERROR:.0%} is assumed"
        )
    if any(row.outside for row in plan.rows):
        remarks.append(
            "outside the profile: over twice or under half of its workers, speed or latency, or another order"
        )
    if predictor.processor is not None and any(row.bound_by == "cpu" for row in plan.rows):
        remarks.append(
            f"bound by cpu: the proxy's processor is full; {more_processor(predictor.processor.cores)}"
        )
    if question.deadline_s is not None and plan.chosen is None:
        best = min(plan.rows, key=lambda row: row.run_s)
        remarks.append(
            f"no row ends within {_time(question.deadline_s)} with its error of {best.error:.0%} added; the"
            f" fastest takes {_time(best.run_s)}:"
            f" cache {best.cache}, {format_count(best.workers, 'worker')}, order"
            f" {'announced' if best.announced else 'no'}"
        )
    if question.prices and plan.prices_of:
        remarks.append(f"prices of {plan.prices_of}")
    return remarks


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
    return f"{seconds / 3600:.1f} h"
