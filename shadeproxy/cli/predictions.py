"""The commands that predict: ``simulate`` (hit ratios of policies) and ``plan`` (times, origin traffic,
cost).
"""

from pathlib import Path
from typing import Annotated

import typer

from shadeproxy.cli.options import ConfigOption, JsonOption, OverrideOption, TokenOption, UrlOption, client
from shadeproxy.core.errors import ConfigError

_CACHES, _ORDERS, _EPOCHS = "5%,10%,20%,50%,100%", "no,announced", 30


def simulate_policies(
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="A trace: ids, and sizes, jobs, epochs, weights.")
    ] = None,
    *,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="Instead: uniform, importance, heavy, lagged or shards.")
    ] = "",
    objects: Annotated[int, typer.Option(min=1, max=1 << 28, help="Objects of the sampler.")] = 10_000,
    epochs: Annotated[int, typer.Option(min=1, max=65_535, help="Epochs of the sampler.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Jobs of the sampler, at one speed.")] = 1,
    ranks: Annotated[int, typer.Option(min=1, help="The trace is of one node of so many.")] = 1,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the sampler, and of policies that draw at random.")
    ] = 0,
    policy: Annotated[str, typer.Option(metavar="all|arc|sieve|NAME,...", help="Policies to try.")] = "all",
    cache: Annotated[str, typer.Option(metavar="SIZE,...", help="Shares of the data, or sizes.")] = (
        "5%,10%,20%"
    ),
    announce: Annotated[
        str, typer.Option(metavar="none|epoch|next-half|all|N|trace", help="How early orders are known.")
    ] = "none",
    as_json: JsonOption = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Where the picture goes; by default simulate.png, with --json nowhere."),
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw nothing.")] = False,
) -> None:
    """Replay a trace through the policies: hit ratios beside that of a clairvoyant."""
    from shadeproxy.cli.simulate import Workload, run_simulate  # noqa: PLC0415  loads numpy, which takes 100 ms

    run_simulate(
        trace=trace,
        workload=Workload(sampler, objects, epochs, jobs, ranks, seed),
        policies=policy,
        caches=cache,
        announce=announce,
        as_json=as_json,
        plot=plot,
        with_plot=not no_plot,
    )


def plan_runs(
    job: Annotated[str, typer.Option(metavar="NAME", help="Job of a running proxy to plan for.")] = "",
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Instead: a profile that --save wrote.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Recording of its reads; else uniform epochs.")
    ] = None,
    cache: Annotated[str, typer.Option(metavar="SIZE,...", help="Shares of the data, or sizes.")] = _CACHES,
    workers: Annotated[str, typer.Option(metavar="N,...", help="Workers; by default as profiled.")] = "",
    order: Annotated[
        str, typer.Option(metavar="no,announced", help="Whether orders are announced.")
    ] = _ORDERS,
    epochs: Annotated[int, typer.Option(min=1, max=1_000_000, help="Epochs of the run.")] = _EPOCHS,
    prices: Annotated[Path | None, typer.Option(metavar="FILE.toml", help="Your prices.")] = None,
    instances: Annotated[str, typer.Option(metavar="NAME,...", help="Of the prices; by default all.")] = "",
    deadline: Annotated[str, typer.Option(metavar="TIME", help="Longest run, as 12h.")] = "",
    link: Annotated[str, typer.Option(metavar="SPEED", help='Of the origin, as "100 MB/s".')] = "",
    latency: Annotated[
        str, typer.Option(metavar="TIME", help='Of the origin, until its first byte, as "80 ms".')
    ] = "",
    samples_per_s: Annotated[
        float,
        typer.Option("--samples-per-s", min=0.0, help="Speed of training, if the job does not tell it."),
    ] = 0.0,
    loader: Annotated[
        str,
        typer.Option(metavar="WORKERS,BATCH[,PREFETCH[,READS]]", help="If the job does not tell its loader."),
    ] = "",
    save: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Keep the profile.")] = None,
    place: Annotated[
        bool, typer.Option("--place", help="Instead: print which data set goes to which device.")
    ] = False,
    devices: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="For --place; by default the tiers of the proxy."),
    ] = None,
    as_json: JsonOption = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the rows.")] = None,
) -> None:
    """Predict epoch time, stall, origin traffic and cost of other caches, workers and orders.

    Needs one epoch that was trained through the proxy.
    """
    # This import loads numpy, which takes 100 ms.
    from shadeproxy.cli.plan import PlanOptions, parse_link, run_plan  # noqa: PLC0415

    if place:
        from shadeproxy.cli.placement import run_place  # noqa: PLC0415

        _refuse_with_place(
            job=job,
            profile=profile,
            cache=cache != _CACHES,
            workers=workers,
            order=order != _ORDERS,
            epochs=epochs != _EPOCHS,
            prices=prices,
            instances=instances,
            deadline=deadline,
            latency=latency,
            samples_per_s=samples_per_s,
            loader=loader,
            save=save,
            plot=plot,
        )
        run_place(
            lambda: client(config, override, url, token),
            devices=devices,
            trace=trace,
            link=parse_link(link) if link else None,
            as_json=as_json,
        )
        return
    if devices is not None:
        raise ConfigError("--devices goes with --place; write that too, or leave it out")
    options = PlanOptions(
        job=job,
        profile=profile,
        trace=trace,
        caches=cache,
        workers=workers,
        orders=order,
        epochs=epochs,
        prices=prices,
        instances=instances,
        deadline=deadline,
        link=link,
        latency=latency,
        samples_per_s=samples_per_s,
        loader=loader,
    )
    run_plan(lambda: client(config, override, url, token), options, save=save, as_json=as_json, plot=plot)


def _refuse_with_place(**given: object) -> None:
    """Raise ConfigError if the user gave an option that ``--place`` does not use."""
    names = ["--" + name.replace("_", "-") for name, value in given.items() if value]
    if names:
        raise ConfigError(f"--place takes no {names[0]}: leave one of them out")
