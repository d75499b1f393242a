"""Samples of a proxy's resources, taken from outside: from /proc, its statistics, and the files of its
tiers.
"""

import re
import time
import tomllib
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec

from shadeproxy_bench.server import Served

_PROC = Path("/proc")
_STATUS = re.compile(r"^(RssAnon|RssFile|RssShmem|Threads):\s+(\d+)", re.MULTILINE)


class Sample(msgspec.Struct):
    """One sample of a proxy's resources. Descriptors are counted by kind. ``tier_bytes``, ``tier_disk_bytes``
    (blocks of the tier's files) and ``tier_capacity_bytes`` are by tier, ``evictions`` by tier and reason.
    """

    at_s: float
    rss_anon_bytes: int
    rss_shared_bytes: int
    threads: int
    sockets: int
    segments: int
    deleted: int
    others: int
    readings: int
    inflight_bytes: int
    tier_bytes: dict[str, int]
    tier_disk_bytes: dict[str, int]
    tier_capacity_bytes: dict[str, int]
    evictions: dict[str, int]
    tier_errors: dict[str, int]
    origin_errors: dict[str, int]
    bypassed: int
    coalesced: int
    requests: int
    origin_bytes: int
    tasks: int = 0
    connections: int = 0
    rss_file_bytes: int = 0

    @property
    def descriptors(self) -> int:
        return self.sockets + self.segments + self.others


class Watch:
    """Takes samples of one proxy, whose files are below ``work``."""

    def __init__(self, proxy: Served, work: Path) -> None:
        self._proxy = proxy
        self._began_s = time.monotonic()
        cache = tomllib.loads((work / proxy.name / "config.toml").read_text())["cache"]
        self._paths = {tier: Path(cache[tier]["path"]) for tier in ("ram", "disk")}

    def look(self) -> Sample:
        url, fields = f"{self._proxy.control_url}/v1/stats", self._proxy.control_fields
        with urlopen(Request(url, headers=fields), timeout=60) as answer:
            stats = msgspec.json.decode(answer.read())
        status = dict(_STATUS.findall((_PROC / str(self._proxy.pid) / "status").read_text()))
        tiers = stats["tiers"]
        sockets, segments, deleted, others = self._descriptors()
        return Sample(
            at_s=round(time.monotonic() - self._began_s, 3),
            rss_anon_bytes=int(status["RssAnon"]) * 1024,
            rss_shared_bytes=int(status["RssShmem"]) * 1024,
            threads=int(status["Threads"]),
            sockets=sockets,
            segments=segments,
            deleted=deleted,
            others=others,
            readings=int(stats["gauges"]["readings"]),
            inflight_bytes=int(stats["gauges"]["inflight_bytes"]),
            tier_bytes={name: tier["used_bytes"] for name, tier in tiers.items()},
            tier_disk_bytes={name: _disk_bytes(path) for name, path in self._paths.items()},
            tier_capacity_bytes={name: tier["capacity_bytes"] for name, tier in tiers.items()},
            evictions={
                f"{name} {why}": n for name, tier in tiers.items() for why, n in tier["evictions"].items()
            },
            tier_errors={
                f"{name} {why}": n for name, tier in tiers.items() for why, n in tier["errors"].items()
            },
            origin_errors=stats["origin"]["errors_by_kind"],
            bypassed=stats["pages"]["bypassed"],
            coalesced=stats["pages"]["coalesced"],
            requests=stats["totals"]["requests"],
            origin_bytes=stats["totals"]["origin_bytes"],
            tasks=int(stats["gauges"]["tasks"]),
            connections=int(stats["gauges"]["connections"]),
            rss_file_bytes=int(status["RssFile"]) * 1024,
        )

    def _descriptors(self) -> tuple[int, int, int, int]:
        sockets = segments = deleted = others = 0
        for entry in (_PROC / str(self._proxy.pid) / "fd").iterdir():
            try:
                target = str(entry.readlink())
            except FileNotFoundError:
                continue
            # A descriptor that stays open after its file was deleted keeps the file's space. The memory that
            # processes share (memfd) never had a name.
            deleted += target.endswith(" (deleted)") and not target.startswith("/memfd:")
            if target.startswith("socket:"):
                sockets += 1
            elif any(target.startswith(str(path)) for path in self._paths.values()):
                segments += 1
            else:
                others += 1
        return sockets, segments, deleted, others


def _disk_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
