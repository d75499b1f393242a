"""``python -m shadeproxy_bench.studies.monarch`` measures every way to read, and writes
docs/studies/monarch/. It takes 20 minutes for a seed.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shadeproxy.demo.processes import termination_as_interrupt
from shadeproxy_bench import machine
from shadeproxy_bench.objects import BUCKET, write_objects
from shadeproxy_bench.server import workplace
from shadeproxy_bench.studies.by_hand import kept
from shadeproxy_bench.studies.monarch.report import epochs_table, needed_s, plot
from shadeproxy_bench.studies.monarch.runs import WAYS, Point, Scale, run, shard

_TITLE = "# Study (d): Monarch's case, a data set twice the cache on a shared file system"


def main() -> None:
    parser = argparse.ArgumentParser(description="Shards of a data set twice the cache, file origin.")
    parser.add_argument("--shards", type=int, default=Scale().shards)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/studies/monarch"))
    parser.add_argument("--resume", action="store_true", help="keep the runs that --out has, make the rest")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    scale, began = Scale(shards=options.shards), time.monotonic()
    results = options.out / "results.json"
    found = earlier_points(results, scale) if options.resume else []
    warnings = machine.warnings()
    with termination_as_interrupt(), workplace(on_disk=True) as work:
        write_objects(work, [shard(scale, number) for number in range(scale.shards)])
        buckets = work / "buckets"
        buckets.mkdir()
        (work / BUCKET).rename(buckets / BUCKET)
        # Run all ways for one seed after another. If the machine is busy for a quarter of an hour, that then
        # affects every way.
        for seed in range(options.seeds):
            for number, way in enumerate(WAYS):
                if any((point.way, point.seed) == (way.name, seed) for point in found):
                    continue
                for point in run(scale, way, seed, buckets=buckets, work=work / f"{seed}-{number}"):
                    found.append(point)
                    _say(
                        f"{way.name}, seed {seed}, epoch {point.epoch + 1}: {point.wall_s:.1f} s,"
                        f" {point.operations} operations, {point.bytes / 1e6:.0f} MB"
                    )
                results.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    path = options.out / "README.md"
    path.write_text(markdown(found, scale, options.out, warnings))
    _say(f"written: {path}; {time.monotonic() - began:.0f} s")


def earlier_points(path: Path, scale: Scale) -> list[Point]:
    """Return the stored points. Raises ValueError if they are of another loop, or if a run has another number
    of epochs.
    """
    found = msgspec.json.decode(path.read_bytes(), type=list[Point]) if path.exists() else []
    compute_s = scale.data_bytes / scale.rate_bytes_per_s
    per_run = Counter((point.way, point.seed) for point in found)
    if set(per_run.values()) - {scale.epochs} or any(abs(one.compute_s - compute_s) > 1e-6 for one in found):
        raise ValueError(f"{path} has runs of another scale: leave --resume out")
    return found


def markdown(found: Sequence[Point], scale: Scale, out: Path, warnings: Sequence[str]) -> str:
    """Return the Markdown of the whole page. The text that a person wrote below the tables of the page in
    ``out`` is kept.
    """
    picture = out / "epochs.png"
    plot(found, scale, picture)
    parts = [
        _TITLE,
        (
            f"`python -m shadeproxy_bench.studies.monarch`; {machine.describe()}. {scale.shards} shards"
            f" of {scale.shard_bytes >> 20} MiB in a directory (`origin.kind = file`) that gives"
            f" {scale.link_bytes_per_s / 1e6:.0f} MB/s (`origin.bandwidth`). {scale.readers} readers, each a"
            f" shard from its beginning to its end, {scale.read_bytes >> 10} KiB a read, in a new order drawn"
            f" for each epoch; a modelled loop of {scale.rate_bytes_per_s / 1e6:.0f} MB/s. A running proxy,"
            " empty at first, with half of the data's size, half of that in RAM and half on disk, pages of"
            f" {scale.page_bytes >> 10} KiB. Direct: the same server, which keeps nothing and forwards each"
            f" read. Medians of {len({one.seed for one in found})} seeds."
        ),
        *(f"Warning: {warning}." for warning in warnings),
        f"![time, operations and bytes by epoch]({picture.name})",
        f"## Time of an epoch, s; the loop alone takes {found[0].compute_s:.2f} s",
        epochs_table(found, lambda one: one.wall_s, ".1f"),
        "Against max(compute, bytes from the origin / link):",
        epochs_table(found, lambda one: one.wall_s / needed_s(scale, one), ".2f"),
        "## Operations on the origin",
        epochs_table(found, lambda one: one.operations, ".0f"),
        "## Bytes from the origin, % of the data",
        epochs_table(found, lambda one: 100 * one.bytes / scale.data_bytes, ".1f"),
    ]
    return "\n\n".join([*parts, kept(out / "README.md")]) + "\n"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
