"""Profiles of jobs, made by replays with known times, and files of prices and of devices."""

from shadeproxy.plan.loop import Loop, replay
from shadeproxy.plan.profile import Loader, Profile, ProfiledEpoch

PRICES = """
date = "2026-11-01"
[origin]
per_1000_requests = 0.5
per_gib = 0.1
[cache]
per_gib_hour = 0.01
[instances.small]
per_hour = 1.0
[instances.big]
per_hour = 4.0
speed = 2.0
"""

DEVICES = """
[origin]
read_speed = "250 MB/s"
[devices.ram]
capacity = "32 GB"
read_speed = "20 GB/s"
[devices.ssd]
capacity = "200 GB"
read_speed = "500 MB/s"
[devices.hdd]
capacity = "2 TB"
read_speed = "150 MB/s"
reads_per_s = 150
"""

SAMPLES, BYTES = 8192, 100_000


def truth(workers=8, *, compute_s=0.001, miss_s=0.05, link_s=0.0):
    return Loop(
        workers=workers, batch_size=64, prefetch_factor=2, reads_at_once=1, compute_s=compute_s,
        client_s=0.0005, miss_s=miss_s, link_s=link_s,
    )  # fmt: skip


def epoch(number, loop, hit_ratio, *, slower=1.0, **fields):
    found = replay(loop, SAMPLES, hit_ratio, seed=number)
    told = {
        "epoch": number,
        "began": 1e9 + number,
        "wall_s": found.wall_s * slower,
        "samples": SAMPLES,
        "bytes": SAMPLES * BYTES,
        "hits": round(SAMPLES * hit_ratio),
        "origin_bytes": round(SAMPLES * (1 - hit_ratio) * BYTES),
        "stall_s": found.stall_s * slower,
        "compute_s": SAMPLES * loop.compute_s,
    }
    return ProfiledEpoch(**(told | fields))


def profile(*epochs, **fields):
    told = {
        "version": 1,
        "job": "resnet",
        "samples": SAMPLES,
        "world_size": 1,
        "announced": False,
        "policy": "default",
        "cache_bytes": SAMPLES * BYTES // 5,
        "origin_s": 0.05,
        "epochs": list(epochs),
        "loader": Loader(workers=8, batch_size=64),
    }
    return Profile(**(told | fields))
