"""``shadeproxy demo``: makes the data, runs the trainings one after another, and shows and writes the
results.

Law: the demo's files are in temporary directories, and its servers and trainings are child processes. All of
these are gone when the demo has ended, even if it failed. Only the directory of the report stays, and the
objects on a server that the user named.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from shadeproxy.core.errors import ConfigError
from shadeproxy.core.types import SHARED
from shadeproxy.core.units import format_size
from shadeproxy.demo.images import Photo, Photographer, held_out
from shadeproxy.demo.messages import ExistingServer, TrainingPlan
from shadeproxy.demo.objects import find_missing, upload, write_files
from shadeproxy.demo.plots import write_plots
from shadeproxy.demo.processes import scratch_directory, termination_as_interrupt
from shadeproxy.demo.report import DataSet, Report, describe_machine, write_report
from shadeproxy.demo.runs import CONTESTANTS, ORIGIN_DELAY, UNSCORED, Contestant, Stage, run
from shadeproxy.demo.screen import Bar, Bars, comparison, findings
from shadeproxy.origin.credentials import ChainCredentials
from shadeproxy.origin.s3 import S3Origin

CACHE_SHARE = 0.2
_BUCKET = "digits"
_PREFIX = "shadeproxy-demo/"
_TEST_PHOTOS = 2000
_BLOCK_BYTES = 4096
_TITLES = {contestant.name: contestant.title for contestant in (*CONTESTANTS, UNSCORED)}
_WIDTH = max(map(len, _TITLES.values()))


def run_demo(
    report_dir: Path,
    endpoint: str | None = None,
    bucket: str | None = None,
    *,
    objects: int = 10_000,
    epochs: int = 3,
    contestants: Sequence[Contestant] = CONTESTANTS,
    work_dir: Path | None = None,
    console: Console | None = None,
) -> Report:
    """Train once for each of ``contestants``, and write report.json and plots into ``report_dir``.

    ``endpoint`` and ``bucket``: use that S3 server instead of the built-in one. ``objects`` PNG files are
    then uploaded below shadeproxy-demo/ in its bucket, unless they are there already. ``work_dir``: directory
    for temporary files, by default the system's. Raises ShadeProxyError that names the cause.
    """
    console = console or Console()
    started = time.monotonic()
    make_report_directory(report_dir)
    with (
        termination_as_interrupt(),
        scratch_directory("shadeproxy-demo-", work_dir) as directory,
        Bars(console, _WIDTH) as bars,
    ):
        stage, dataset = prepare(
            directory, bars, console, endpoint=endpoint, bucket=bucket, objects=objects, epochs=epochs
        )
        runs = tuple(
            run(contestant, stage, bars.add(contestant.title, epochs).show) for contestant in contestants
        )
    report = Report(describe_machine(), dataset, stage.cache_bytes, runs)
    written = [write_report(report, report_dir), *write_plots(report, _TITLES, report_dir)]
    console.print(comparison(report, _TITLES))
    conclude(console, findings(report), written, started)
    return report


def conclude(console: Console, findings: Sequence[str], written: Sequence[Path], started: float) -> None:
    """Print the findings, and the names of the files that were ``written`` into the report's directory."""
    for sentence in findings:
        console.print(f"- {sentence}", highlight=False)
    names = ", ".join(path.name for path in written)
    console.print(
        f"{time.monotonic() - started:.0f} s in all; wrote {names} to {written[0].parent}/", highlight=False
    )


def make_report_directory(path: Path) -> None:
    """Make the directory of the report. Raises ConfigError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--report-dir {path}: {error.strerror}; name a directory that can be made and written"
        ) from None


def prepare(
    directory: Path,
    bars: Bars,
    console: Console,
    *,
    endpoint: str | None,
    bucket: str | None,
    objects: int,
    epochs: int,
) -> tuple[Stage, DataSet]:
    """Make the photos, and store them locally or upload them. The arguments have the same meaning as in
    ``run_demo``. Raises ShadeProxyError.
    """
    console.print(f"Digits of scikit-learn, photographed {objects:,} times: PNG images, one object each.")
    making = bars.add("making photographs", objects)
    photos = [_counted(photo, making) for photo in Photographer("train").shoot(objects)]
    dataset = DataSet(len(photos), sum(len(photo.data) for photo in photos))
    cache_bytes = int(dataset.bytes * CACHE_SHARE) // _BLOCK_BYTES * _BLOCK_BYTES
    test_file = directory / "test.npz"
    images, labels = held_out(_TEST_PHOTOS)
    np.savez(test_file, images=images, labels=labels)
    place: Path | ExistingServer
    environment: dict[str, str] = {}
    if endpoint and bucket:
        place = ExistingServer(endpoint, _region())
        environment = asyncio.run(_fill_server(place, bucket, photos, bars, console))
        described = f"{endpoint}, bucket {bucket}"
    else:
        place, bucket = directory / "objects", _BUCKET
        storing = bars.add("storing them", objects)
        write_files(photos, place / bucket, lambda _: storing.advance())
        described = f"a directory, answering {ORIGIN_DELAY} late"
    prefix = f"{_PREFIX if endpoint else ''}train/"
    console.print(
        f"{dataset.objects:,} objects, {format_size(dataset.bytes)}; origin: {described};"
        f" cache: {format_size(cache_bytes)}, {CACHE_SHARE:.0%} of the data, new for every run."
    )
    plan = TrainingPlan(
        control_url=None,
        bucket=bucket,
        prefix=prefix,
        test_file=str(test_file),
        epochs=epochs,
    )
    return Stage(directory, place, cache_bytes, plan, environment), dataset


async def _fill_server(
    server: ExistingServer, bucket: str, photos: Sequence[Photo], bars: Bars, console: Console
) -> dict[str, str]:
    """Upload those photos that the server lacks. Return the AWS environment variables that a training needs
    to read them.
    """
    provider = ChainCredentials()
    origin = S3Origin(server.endpoint, credentials={SHARED: provider}, region=server.region)
    try:
        missing = await find_missing(origin, bucket, _PREFIX, photos)
        if missing:
            console.print(
                f"Writing {len(missing):,} objects ({format_size(sum(len(photo.data) for photo in missing))})"
                f" below s3://{bucket}/{_PREFIX} at {server.endpoint}. They stay there; delete them when you"
                " are done."
            )
            sending = bars.add("uploading them", len(missing))
            await upload(origin, bucket, _PREFIX, missing, lambda _: sending.advance())
        keys = await provider.credentials()
    finally:
        await origin.aclose()
    if keys is None:
        return {}
    named = {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
    return named | ({"AWS_SESSION_TOKEN": keys.session_token} if keys.session_token else {})


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def _counted(photo: Photo, bar: Bar) -> Photo:
    bar.advance()
    return photo
