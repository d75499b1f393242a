"""``shadeproxy``: the commands, and how they fail.

Commands raise errors. Only ``Commands`` turns errors of this project into one message on stderr and an exit
status: 2 for configuration and usage, 1 for failures at run time, 130 after Ctrl-C. Any other exception is a
bug and keeps its traceback. A module that takes long to load is imported only by the command that needs it.
"""

import gc
import importlib.util
import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from shadeproxy import __version__
from shadeproxy.cli import cluster
from shadeproxy.cli.options import (
    ConfigOption,
    JsonOption,
    NamespaceOption,
    OverrideOption,
    TokenOption,
    UrlOption,
)
from shadeproxy.cli.options import client as client_of
from shadeproxy.cli.predictions import plan_runs, simulate_policies
from shadeproxy.cli.rows import printable_lines, table_console
from shadeproxy.config import Settings
from shadeproxy.config.toml import write_toml
from shadeproxy.core.errors import ConfigError, RequestError, ShadeProxyError


class Commands(TyperGroup):
    """Runs a command, and explains the errors that it raises."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ShadeProxyError as error:
            hint = f"; {error.hint}" if isinstance(error, RequestError) and error.hint else ""
            typer.echo(printable_lines(f"error: {error}{hint}"), err=True)
            raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands,
    help="S3-compatible caching proxy for training. `shadeproxy check` tries a configuration,"
    " `shadeproxy serve` runs it, `shadeproxy doctor` says what is wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(cluster.app, name="cluster")

_DEMO_NEEDS = {
    "torch": "torch",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "matplotlib": "matplotlib",
    "shadeproxy_sdk": "shadeproxy-sdk",
}


@app.command()
def serve(config: ConfigOption = None, override: OverrideOption = None) -> None:
    """Run the proxy until SIGTERM or Ctrl-C.

    Requests under way are finished then. SIGHUP reads the configuration again.
    """
    # A SIGHUP waits until the proxy can reload. Otherwise, one during the start would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    settings = Settings.load(config, override or ())
    # During this import, garbage collection would search all loaded modules again, and free nothing.
    gc.disable()
    from shadeproxy.app.serve import serve as serve_clients  # noqa: PLC0415  only `serve` needs it

    gc.enable()
    serve_clients(settings, lambda: Settings.load(config, override or ()))


@app.command("config")
def show_config(config: ConfigOption = None, override: OverrideOption = None) -> None:
    """Print the effective settings as TOML, with where each value comes from. Shows no secret."""
    settings = Settings.load(config, override or ())
    typer.echo(write_toml(settings.masked(), settings.note), nl=False)


@app.command()
def check(
    config: ConfigOption = None,
    override: OverrideOption = None,
    bucket: Annotated[str, typer.Option(help="Also list this bucket.")] = "",
) -> None:
    """Try everything that `serve` will need and say what to change.

    Changes nothing, also beside a running proxy.
    """
    settings = Settings.load(config, override or ())
    from shadeproxy.cli.check import run_checks  # noqa: PLC0415  imports the composition root

    console, failed = Console(soft_wrap=True), 0
    for row in run_checks(settings, bucket):
        passed = "[yellow]warning[/]" if row.change else "[green]ok     [/]"
        mark = passed if row.ok else "[bold red]failed [/]"
        console.print(f"{mark} {escape(row.name)}: {escape(row.detail)}", highlight=False)
        failed += not row.ok
        if row.change:
            console.print(f"        change: {escape(row.change)}", highlight=False)
    if failed:
        raise ShadeProxyError(f"{failed} of the checks failed")


@app.command()
def init(
    origin: Annotated[
        str, typer.Argument(metavar="URL|DIRECTORY", help="Object store, or a directory of buckets.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="Where the configuration goes.")] = Path("shadeproxy.toml"),
    region: Annotated[str, typer.Option(help="Region of the store; by default us-east-1.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Ask an origin, and write a commented configuration for it with sizes that fit this machine."""
    from shadeproxy.cli.init import write_config  # noqa: PLC0415  imports the composition root

    write_config(origin, out, region=region, force=force)


@app.command()
def doctor(
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a running proxy what is wrong with it, or find out why none answers, and say what to change.

    Exit status 1 if anything is wrong.
    """
    client = client_of(config, override, url, token)
    from shadeproxy.cli.doctor import examine  # noqa: PLC0415  imports the composition root

    report = examine(client, Settings.load(config, override or ()), elsewhere=bool(url))
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        console = Console(soft_wrap=True)
        for finding in report["findings"]:
            mark = "[bold red]wrong  [/]" if finding["severity"] == "wrong" else "[yellow]warning[/]"
            console.print(f"{mark} {escape(finding['name'])}: {escape(finding['cause'])}", highlight=False)
            console.print(f"        change: {escape(finding['remedy'])}", highlight=False)
        if not report["findings"]:
            console.print("[green]ok[/]      nothing is wrong", highlight=False)
    if not report["healthy"]:
        raise typer.Exit(1)


@app.command()
def stats(
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    as_json: JsonOption = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Refresh every second until Ctrl-C; with --json a line a second."),
    ] = False,
    of_cluster: Annotated[
        bool, typer.Option("--cluster", help="Show a line for each proxy of the cluster, and their sums.")
    ] = False,
) -> None:
    """Show the counters of a running proxy: per tier, bucket, job and epoch."""
    client = client_of(config, override, url, token)
    if of_cluster:
        from shadeproxy.cli.stats import show_nodes  # noqa: PLC0415  rich's tables take 40 ms

        show_nodes(client, Console(), as_json=as_json, watch=watch)
    elif watch:
        from shadeproxy.cli.watch import watch_stats  # noqa: PLC0415  rich's tables take 40 ms

        watch_stats(client, as_json=as_json)
    elif as_json:
        typer.echo(json.dumps(client.get("/v1/stats"), indent=2))
    else:
        from shadeproxy.cli.stats import print_stats  # noqa: PLC0415  rich's tables take 40 ms

        print_stats(client.get("/v1/stats"), Console())


@app.command()
def purge(
    uri: Annotated[
        str, typer.Argument(metavar="s3://BUCKET/PREFIX", help="Prefix to drop from the cache.")
    ] = "",
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Empty the cache directories while no proxy runs on them.")
    ] = False,
    namespace: NamespaceOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Drop cached pages below a prefix from a running proxy, or with --all everything of a stopped one.

    The origin is not touched. Ctrl-C ends it; what was dropped stays dropped.
    """
    from shadeproxy.cli.prefixes import purge_prefix  # noqa: PLC0415  rich's bars take 20 ms

    if everything:
        from shadeproxy.cli.directories import empty_caches  # noqa: PLC0415  only this option needs it

        empty_caches(Settings.load(config, override or ()), uri or url, dry_run=dry_run, as_json=as_json)
        return
    purge_prefix(client_of(config, override, url, token), uri, namespace, dry_run=dry_run, as_json=as_json)


@app.command()
def inspect(
    uri: Annotated[
        str, typer.Argument(metavar="s3://BUCKET/PREFIX", help="A prefix, or the key of a cached object.")
    ],
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    namespace: NamespaceOption = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many objects.")] = 100,
    start_after: Annotated[str, typer.Option(metavar="KEY", help="Only keys after this one.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show the cached pages of an object, or the cached objects below a prefix in key order."""
    from shadeproxy.cli.cached import inspect_cached  # noqa: PLC0415  loads rich, which takes 20 ms

    client = client_of(config, override, url, token)
    inspect_cached(client, uri, namespace, limit=limit, start_after=start_after, as_json=as_json)


@app.command()
def warm(
    uri: Annotated[str, typer.Argument(metavar="s3://BUCKET/PREFIX", help="Prefix to read into the cache.")],
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    namespace: NamespaceOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read everything below a prefix into the cache, where there is room for it. Ctrl-C ends it."""
    from shadeproxy.cli.prefixes import warm_prefix  # noqa: PLC0415  loads rich, which takes 20 ms

    warm_prefix(client_of(config, override, url, token), uri, namespace, dry_run=dry_run, as_json=as_json)


@app.command()
def pin(
    uri: Annotated[
        str, typer.Argument(metavar="s3://BUCKET/PREFIX", help="Prefix to keep; without it, list the pins.")
    ] = "",
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    namespace: NamespaceOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Pin a prefix: keep its pages, whatever else is read, until it is unpinned."""
    from shadeproxy.cli.prefixes import pin_prefix  # noqa: PLC0415  loads rich, which takes 20 ms

    pin_prefix(client_of(config, override, url, token), uri, namespace, dry_run=dry_run, as_json=as_json)


@app.command()
def unpin(
    uri: Annotated[str, typer.Argument(metavar="s3://BUCKET/PREFIX", help="Pinned prefix.")],
    *,
    config: ConfigOption = None,
    override: OverrideOption = None,
    url: UrlOption = "",
    token: TokenOption = "",
    namespace: NamespaceOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a pin."""
    from shadeproxy.cli.prefixes import unpin_prefix  # noqa: PLC0415  loads rich, which takes 20 ms

    unpin_prefix(client_of(config, override, url, token), uri, namespace, dry_run=dry_run, as_json=as_json)


@app.command()
def demo(
    report_dir: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("demo-report"),
    endpoint: Annotated[str, typer.Option(help="An existing S3 server instead of the built-in origin.")] = "",
    bucket: Annotated[str, typer.Option(help="The bucket to use there.")] = "",
    nodes: Annotated[
        int, typer.Option(min=1, max=8, help="Proxies to train through; several need Redis.")
    ] = 1,
) -> None:
    """Train a small model three times: direct, through an LRU cache, and through ShadeProxy with scores.

    With --nodes, train it twice instead: through several proxies whose caches are one, and through one proxy.
    """
    if bool(endpoint) != bool(bucket):
        raise ConfigError("--endpoint and --bucket belong together: write both or neither")
    missing = [name for module, name in _DEMO_NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ShadeProxyError(
            f"the demo needs {', '.join(missing)}; in a checkout install with: pip install ./sdk '.[demo]'"
        )
    if nodes > 1:
        from shadeproxy.demo.cluster import require_cluster  # noqa: PLC0415  only the demo needs it

        require_cluster()
        from shadeproxy.demo.nodes import run_nodes  # noqa: PLC0415  loads torch

        run_nodes(report_dir, nodes, endpoint or None, bucket or None)
        return
    from shadeproxy.demo.main import run_demo  # noqa: PLC0415  loads torch

    run_demo(report_dir=report_dir, endpoint=endpoint or None, bucket=bucket or None)


@app.command()
def bench(
    suite: Annotated[str, typer.Option(metavar="NAME[,NAME]", help="Only these suites.")] = "",
    out: Annotated[Path, typer.Option(help="Where results.json and results.md go.")] = Path("bench"),
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only rows with TEXT; not written.")] = "",
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small and short, for a look; not written.")] = False,
) -> None:
    """Measure ShadeProxy beside nginx, stock clients and the bare origin; print ratios and targets."""
    if importlib.util.find_spec("shadeproxy_bench") is None:
        raise ShadeProxyError(
            "the benchmark is a package of its own; in a checkout install it with: pip install ./bench"
        )
    from shadeproxy_bench.run import run_bench  # noqa: PLC0415  loads the references to measure

    names = [name.strip() for name in suite.split(",") if name.strip()]
    if suite and not names:
        raise ConfigError(f"--suite {suite!r} names none; leave it out for all of them")
    kept = None if quick or only else out
    results = run_bench(names, quick=quick, out=kept, console=table_console(markup=True), only=only)
    if not results.rows:
        raise ConfigError(f"--only {only!r}: no row of these suites has it in its name")
    if failed := [row.name for row in results.rows if row.status == "failed"]:
        raise ShadeProxyError(f"{len(failed)} rows failed: {', '.join(failed)}")


app.command("simulate")(simulate_policies)
app.command("plan")(plan_runs)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"shadeproxy {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def version() -> None:
    """Print the version."""
    _print_version(is_asked=True)


def run() -> None:
    """Run the command line; the console script calls this."""
    sys.exit(app())
