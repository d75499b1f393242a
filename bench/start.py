"""A start with many pages on disk. The figures are the seconds until the proxy accepts a connection and until
its first hit, the memory for each resident page, and the time to choose a victim.

The product's own store writes a disk tier of ``N`` small records. Two starts are measured. One has
catalogues, as after a clean stop. The other has none, which is the worst case after kill -9. For each start,
a page cache in this process recovers the tier, while a task on the same event loop measures how long it has
to wait. Then ``shadeproxy serve`` is started on the same tier, and gets requests until they are hits.

Run: ``python bench/start.py [N] [directory]`` (default: 1,000,000 pages in a temporary directory on disk).
"""

import asyncio
import contextlib
import gc
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shadeproxy.app.origins import origin_name
from shadeproxy.config import Settings
from shadeproxy.core.identity import etag_hash, group_name, object_hash
from shadeproxy.core.ledger import Ledger
from shadeproxy.core.types import ObjectMeta, ObjectRef, Page, Source
from shadeproxy.engine.index.residents import Residents
from shadeproxy.engine.storage.medium import Medium
from shadeproxy.engine.storage.page_cache import PageCache
from shadeproxy.policy.registry import get_policy
from shadeproxy.telemetry.stats import Stats
from shadeproxy.tiers.base import RecordHeader
from shadeproxy.tiers.rows import ROW, Contents
from shadeproxy.tiers.store import SegmentStore
from shadeproxy_bench.ports import free_port

BODY_BYTES = 1000
ETAG = '"0123456789abcdef0123456789abcdef"'
HITS = 200
TARGETS = {"accept_s": 1.0, "first_hit_s": 5.0, "memory_bytes": 300.0, "victim_us": 50.0, "blocked_ms": 10.0}


@dataclass(frozen=True)
class Served:
    """Times of one started proxy, in seconds since its process was started."""

    accept_s: float
    first_hit_s: float
    hits_s: float
    """Seconds until ``HITS`` reads of pages drawn at random were hits without a miss between them."""
    recovered_s: float


@dataclass(frozen=True)
class Held:
    """The measurements of one page cache that was opened in this process."""

    pages: int
    open_ms: float
    take_in_s: float
    blocked_ms: float
    memory_bytes: float
    """Bytes by which the process's RssAnon grew for each resident page."""
    find_us: float
    victim_us: float


def key_of(number: int) -> str:
    return f"images/{number:08d}.jpg"


def body_of(number: int) -> bytes:
    return number.to_bytes(8, "little") * (BODY_BYTES // 8)


class Site:
    """Directories and settings of one proxy whose disk tier holds ``count`` pages."""

    def __init__(self, root: Path, count: int) -> None:
        self.root, self.count = root, count
        (root / "origin" / "train").mkdir(parents=True)
        self.config = root / "config.toml"
        self.config.write_text('[[rules]]\nfreshness = "immutable"\n')
        self.capacity_bytes = max(64 << 20, 2 * count * (BODY_BYTES + 512))
        self.overrides = [
            "s3.listen=127.0.0.1:0",
            "control.listen=127.0.0.1:0",
            "origin.kind=file",
            f"origin.path={root}/origin",
            f"cache.ram.path={root}/ram",
            "cache.ram.capacity=64 MiB",
            f"cache.disk.path={root}/disk",
            f"cache.disk.capacity={self.capacity_bytes}",
            "cache.disk.min_free=0",
            f"state.path={root}/state",
        ]

    def disk(self) -> SegmentStore:
        contents = origin_name(Settings.load(self.config, self.overrides))
        return SegmentStore("disk", self.root / "disk", self.capacity_bytes, contents=contents)

    def build(self) -> None:
        """Write the records through the store, and stop the store cleanly."""
        store, rows = self.disk(), np.zeros(self.count, ROW)
        store.open()
        meta = ObjectMeta(ETAG, BODY_BYTES, (("Content-Type", "image/jpeg"), ("Accept-Ranges", "bytes")))
        for number in range(self.count):
            page = Page(ObjectRef("train", key_of(number)), ETAG, 0)
            location = store.reserve(store.record_bytes(page, meta, BODY_BYTES))
            store.write(location, RecordHeader(page, meta, BODY_BYTES, time.time()), body_of(number))
            rows["location"][number], rows["object_hash"][number] = location, object_hash(page.ref)
        rows["etag"], rows["body_bytes"], rows["uses"] = etag_hash(ETAG), BODY_BYTES, 1.0
        rows["validated_s"] = time.time()
        store.close(Contents(rows, [group_name(page.ref)]))

    def forget_catalogues(self) -> None:
        for path in (self.root / "disk").glob("*.cat"):
            path.unlink()


def serve(site: Site) -> Served:
    """Start the product on ``site``, send requests until ``HITS`` in a row are hits, wait until all pages are
    recovered, and kill it.
    """
    s3, control = free_port(), free_port()
    overrides = [*site.overrides, f"s3.listen=127.0.0.1:{s3}", f"control.listen=127.0.0.1:{control}"]
    arguments = [item for pair in overrides for item in ("--set", pair)]
    command = [sys.executable, "-m", "shadeproxy", "serve", "--config", str(site.config), *arguments]
    start = time.perf_counter()
    with (site.root / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", s3)):
                break
            assert process.poll() is None, (site.root / "log").read_text()
            time.sleep(0.005)
        accept_s = time.perf_counter() - start
        first_hit_s, hits_s = _hit(site, s3, start)
        while _gauge(control, "recovering_segments"):
            time.sleep(0.02)
        return Served(accept_s, first_hit_s, hits_s, time.perf_counter() - start)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _hit(site: Site, port: int, start: float) -> tuple[float, float]:
    connection, rng = http.client.HTTPConnection("127.0.0.1", port), random.Random(1)
    in_a_row, first_hit_s = 0, 0.0
    while in_a_row < HITS:
        number = rng.randrange(site.count)
        connection.request("GET", f"/train/{key_of(number)}")
        answer = connection.getresponse()
        body = answer.read()
        if answer.status == 200:
            assert body == body_of(number)
            assert answer.headers["x-shade-cache"] in ("disk", "ram")
            first_hit_s = first_hit_s or time.perf_counter() - start
        in_a_row = in_a_row + 1 if answer.status == 200 else 0
    connection.close()
    return first_hit_s, time.perf_counter() - start


def _gauge(port: int, name: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/v1/stats")

    value = json.loads(connection.getresponse().read())["gauges"][name]
    connection.close()
    return float(value)


class _NoWeights:
    def weights_of(self, object_hashes: "np.ndarray", _numbers: "np.ndarray") -> "np.ndarray":
        return np.full(len(object_hashes), np.nan)


async def _take_in(cache: PageCache) -> tuple[float, float]:
    """Return the seconds that recovery took, and the longest wait of another task on the event loop
    meanwhile, in milliseconds.
    """
    waits: list[float] = []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0)
            waits.append(time.perf_counter() - before)
            await asyncio.sleep(0.0005)

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0.05)
    waits.clear()
    start = time.perf_counter()
    cache.start_recovery()
    await cache.recovered()
    took_s = time.perf_counter() - start
    watcher.cancel()
    return took_s, 1000 * max(waits)


def hold(site: Site) -> Held:
    """Recover the tier of ``site`` in this process. Return the times, and the memory for each resident
    page.
    """
    gc.collect()
    before = _rss_anon_bytes()
    cache = PageCache(
        [Medium(site.disk(), Source.DISK)],
        policy=get_policy("default"),
        weights=_NoWeights(),
        stats=Stats(),
        ledger=Ledger(1 << 30),
        rng=np.random.default_rng(1),
    )
    start = time.perf_counter()
    cache.open()
    open_ms = 1000 * (time.perf_counter() - start)
    take_in_s, blocked_ms = asyncio.run(_take_in(cache))
    gc.collect()
    memory_bytes = (_rss_anon_bytes() - before) / site.count
    held = Held(
        len(cache.residents), open_ms, take_in_s, blocked_ms, memory_bytes, _find_us(cache.residents),
        _victim_us(cache),
    )  # fmt: skip
    cache.close()
    return held


def _rss_anon_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in line)
    return int(line.split()[1]) * 1024


def _find_us(residents: Residents) -> float:
    wanted, rng = etag_hash(ETAG), np.random.default_rng(2)
    hashes = residents.object_hash[rng.choice(residents.ready(), 20_000)].tolist()
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for hashed in hashes:
            assert residents.find(hashed, 0, wanted) is not None
        rounds.append((time.process_time() - start) / len(hashes) * 1e6)
    return statistics.median(rounds)


def _victim_us(cache: PageCache) -> float:
    """Return the median of the microseconds that it takes to choose a victim for a page of the usual size. No
    page is evicted.
    """
    placement, rounds = cache.placement, []
    newcomer = int(cache.residents.ready()[0])
    for _ in range(300):
        start = time.process_time()
        placement._displace(newcomer, 0, BODY_BYTES, lambda _slot, _reason: None)  # noqa: SLF001
        rounds.append((time.process_time() - start) * 1e6)
    return statistics.median(rounds)


def measure(count: int, root: Path) -> dict[str, tuple[Served, Held]]:
    """Measure starts after a clean stop and after a kill, of a tier of ``count`` pages under ``root``."""
    site = Site(root, count)
    site.build()
    held = hold(site)
    clean = serve(site), held
    site.forget_catalogues()
    held = hold(site)
    site.forget_catalogues()
    return {"clean": clean, "killed": (serve(site), held)}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as root:
        results = measure(count, Path(root))
    print(f"{count:,} pages of {BODY_BYTES} B on {os.cpu_count()} processors")
    for name, (served, held) in results.items():
        print(f"{name}: {served}")
        print(f"{name}: {held}")
        for what, target in TARGETS.items():
            value = getattr(served, what, None) or getattr(held, what, 0.0)
            print(f"  {what} {value:.3g}, target <= {target:g}: {'met' if value <= target else 'missed'}")


if __name__ == "__main__":
    main()
