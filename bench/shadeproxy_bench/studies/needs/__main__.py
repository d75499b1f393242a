"""``python -m shadeproxy_bench.studies.needs`` lets four unequal loops share a cache and a link in virtual
time, with needs and without. It writes docs/studies/needs/.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from shadeproxy.hints.needs import JobNeed
from shadeproxy_bench.studies.by_hand import kept
from shadeproxy_bench.studies.needs.model import Loop, World, optimum, share
from shadeproxy_bench.studies.needs.report import Result, picture, rows

_SIZE = 50_000
LOOPS = [
    Loop("a", 25.0, 250, JobNeed(slowdown=1.1), sample_bytes=_SIZE, batch=2),
    Loop("b", 12.5, 190, sample_bytes=_SIZE, batch=2),
    Loop("c", 9.4, 125, JobNeed(slowdown=1.3), sample_bytes=_SIZE, batch=2),
    Loop("d", 37.5, 500, sample_bytes=_SIZE, batch=2),
]
NEWCOMER = Loop("new", 1000.0, 4000, sample_bytes=_SIZE, workers=64, batch=2, is_job=False)
WANTED = sum(loop.rate_per_s * loop.sample_bytes for loop in LOOPS)
LINKS = (0.355, 0.45)
_SETTLED_S = 20.0  # two epochs of the shortest loop
_TITLE = "# Study: four unequal jobs beside each other, with needs and without"


def results(world: World, lasting_s: float) -> list[Result]:
    """Run every way to share the link of ``world``, and return the results."""
    half_s = lasting_s / 2
    with_newcomer = [*LOOPS, NEWCOMER._replace(begins_s=half_s)]
    ways = [
        ("LRU, no needs", LOOPS, world._replace(policy="lru", shares=False), 0.0),
        ("no needs", LOOPS, world._replace(shares=False), 0.0),
        ("needs", LOOPS, world, 0.0),
        ("needs, no prefetching", LOOPS, world._replace(prefetching=False), 0.0),
        ("needs, after a newcomer with 64 readers", with_newcomer, world, half_s + _SETTLED_S),
    ]
    found = []
    for name, loops, way, since_s in ways:
        found.append(Result(name, share(loops, way, lasting_s=lasting_s), since_s))
        print(f"{world.link_bytes_per_s / 1e6:.2f} MB/s, {name}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Slowdowns and missed needs of four unequal loops.")
    parser.add_argument("--seconds", type=float, default=400.0, help="virtual seconds of each run")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/needs"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    worlds = [World(part * WANTED) for part in LINKS]
    found = [results(world, options.seconds) for world in worlds]
    path = options.out / "README.md"
    path.write_text(markdown(worlds, found, options.seconds, options.out))
    print(f"written: {path}; {time.monotonic() - began:.0f} s")


def markdown(worlds: Sequence[World], found: Sequence[list[Result]], lasting_s: float, out: Path) -> str:
    """Return the Markdown of the whole page. The text that a person wrote below the tables of the page in
    ``out`` is kept.
    """
    told = "; ".join(
        f"{loop.name}: {loop.rate_per_s:g} samples/s of {_SIZE // 1000} KB, {loop.samples} samples"
        + (f", slowdown {loop.need.slowdown:g} at most" if loop.need else "")
        for loop in LOOPS
    )
    parts = [
        _TITLE,
        (
            "`python -m shadeproxy_bench.studies.needs`, in virtual time, so the machine has no influence:"
            " the real engine, prefetcher and sharing, an origin of 30 ms."
            f" {told}. Together they would read {WANTED / 1e6:.2f} MB/s."
            f" The cache holds {worlds[0].cached:.0%} of the data; {lasting_s:g} s each;"
            " epochs after the second count."
        ),
    ]
    for world, some in zip(worlds, found, strict=True):
        drawn = picture(some[1:3], LOOPS, out / f"link-{world.link_bytes_per_s / 1e6:.2f}.png")
        parts += [
            f"## A link of {world.link_bytes_per_s / 1e6:.2f} MB/s",
            (
                "Mean slowdown against a loop that never waits. With both needs kept, b and d are slowed down"
                f" {optimum(LOOPS, world):.2f} times at best."
            ),
            "\n".join(rows(some, LOOPS)),
            f"![slowdown of each epoch over time]({drawn.name})",
        ]
    return "\n\n".join([*parts, kept(out / "README.md")]) + "\n"


if __name__ == "__main__":
    main()
