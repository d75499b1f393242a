"""The demo itself at a smaller size, with real servers, a real training, and measured numbers."""

import json
import os
import signal
import time
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from shadeproxy.core.errors import ConfigError, ShadeProxyError
from shadeproxy.demo.main import run_demo
from shadeproxy.demo.runs import DIRECT, SHADE
from shadeproxy.demo.servers import serving
from tests.support.command_lines import processes_below
from tests.support.copied import original

OBJECTS = 400


def test_a_training_through_the_proxy_is_measured(tmp_path, console):
    work, reports = tmp_path / "work", tmp_path / "reports"
    work.mkdir()
    report = run_demo(reports, objects=OBJECTS, epochs=2, contestants=[SHADE], work_dir=work, console=console)
    first, second = report.runs[0].epochs
    assert report.dataset.objects == OBJECTS
    assert 0.19 * report.dataset.bytes < report.cache_bytes <= 0.2 * report.dataset.bytes
    # Every sample is read once and comes from the origin, on demand or by prefetching. The first samples of
    # the second epoch may be prefetched already. A sample that is evicted between its locate call and the
    # reader's copy is requested twice.
    assert first.distinct_samples == OBJECTS
    assert OBJECTS <= first.requests < 1.2 * OBJECTS
    assert first.origin_requests >= OBJECTS
    assert first.origin_bytes >= report.dataset.bytes
    # Importance sampling repeats samples, and the cache answers the repeated reads.
    assert second.distinct_samples < OBJECTS
    assert second.hit_ratio > 0.1
    assert second.hits_ram > 0
    assert second.hits_disk > 0
    assert second.origin_requests > 0
    assert 0 < second.stall_s <= second.wall_s
    assert json.loads((reports / "report.json").read_text())["runs"][0]["name"] == "shade"
    assert "ShadeProxy+SDK: epoch 2: accuracy" in console.file.getvalue()
    assert list(work.iterdir()) == []
    assert processes_below(work) == []


@pytest.fixture
def keys(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")


def test_an_existing_server_gets_the_objects_once(tmp_path, console, keys):
    # A proxy in front of a directory acts as the existing S3 server.
    (tmp_path / "buckets" / "mine").mkdir(parents=True)
    settings = {
        "origin": {"kind": "file", "path": str(tmp_path / "buckets")},
        "cache": {"disk": {"capacity": "0"}},
    }
    with serving("server", settings, tmp_path / "server") as server:
        for contestants in ([], [DIRECT]):
            report = run_demo(
                tmp_path / "reports",
                server.s3_url,
                "mine",
                objects=64,
                epochs=1,
                contestants=contestants,
                work_dir=tmp_path,
                console=console,
            )
        with urllib.request.urlopen(f"{server.control_url}/v1/stats", timeout=10) as answer:
            served = json.load(answer)["totals"]["requests"]
    said = " ".join(console.file.getvalue().split())
    assert said.count("Writing 64 objects") == 1
    assert "below s3://mine/shadeproxy-demo/" in said
    assert len(list((tmp_path / "buckets" / "mine" / "shadeproxy-demo" / "train").rglob("*.png"))) == 64
    epoch = report.runs[0].epochs[0]
    assert (epoch.requests, epoch.origin_bytes) == (64, report.dataset.bytes)
    assert served == 64


def test_a_bucket_that_is_not_there_is_named(tmp_path, console, keys):
    (tmp_path / "buckets").mkdir()
    settings = {
        "origin": {"kind": "file", "path": str(tmp_path / "buckets")},
        "cache": {"disk": {"capacity": "0"}},
    }
    with (
        serving("server", settings, tmp_path / "server") as server,
        pytest.raises(ShadeProxyError, match=r"cannot use bucket 'other' .*create the bucket first"),
    ):
        run_demo(tmp_path / "r", server.s3_url, "other", objects=8, work_dir=tmp_path, console=console)


def test_a_report_directory_that_cannot_be_made_is_named(tmp_path, console):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError) as caught:
        run_demo(file, objects=8, work_dir=tmp_path, console=console)
    assert str(caught.value) == (
        f"--report-dir {file}: File exists; name a directory that can be made and written"
    )


def descendants(pid: int) -> set[int]:
    """Return the pids of all descendants of ``pid``."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, below = set(), {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below} - found
        found |= below
    return found


PHASES = {
    "making photographs": "*",
    "storing them": "*/objects/digits/train/0/*",
    "starting a server": "*/direct/origin/config.toml",
    "starting a training": "*/direct/train.log",
}


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("making photographs", signal.SIGTERM),
        ("storing them", signal.SIGINT),
        ("starting a server", signal.SIGTERM),
        ("starting a training", signal.SIGINT),
        ("training", signal.SIGTERM),
    ],
)
def test_a_signal_leaves_nothing_behind_in_any_phase(tmp_path, phase, number):
    work, said = tmp_path / "work", tmp_path / "log"
    work.mkdir()
    script = (
        "import sys; from pathlib import Path; from shadeproxy.demo import main; main._TEST_PHOTOS = 200;"
        "main.run_demo(Path(sys.argv[1]), objects=int(sys.argv[3]), work_dir=Path(sys.argv[2]))"
    )
    # This phase needs many images, so that the test sees the phase before it ends. The other phases last long
    # enough.
    objects = 3000 if phase == "storing them" else 600
    command = ["-c", script, str(tmp_path / "reports"), str(work), str(objects)]
    with said.open("wb") as log:
        demo = original(("shadeproxy.demo.main",)).start(
            command, stdout=log.fileno(), stderr=log.fileno(), environment=os.environ
        )
    reached = partial(work.glob, PHASES.get(phase, PHASES["starting a training"]))
    try:
        deadline = time.monotonic() + 60
        # Wait for the workers of the loader. They are children of the training, which is a child of the demo.
        while not list(reached()) or (phase == "training" and len(descendants(demo.pid)) < 4):
            assert demo.poll() is None, said.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1 if phase == "training" else 0.02)  # To look for descendants takes 10 ms of CPU.
        children = descendants(demo.pid)
        caches = Path("/dev/shm")
        mine = f"shadeproxy-demo-{demo.pid}-*"
        assert list(caches.glob(mine)) or "start" not in phase or not caches.is_dir(), (
            "the pattern is that of the directories it makes"
        )
        demo.send_signal(number)
        demo.send_signal(number)  # An impatient user sends the signal twice, which changes nothing.
        assert demo.wait(30) != 0
    finally:
        demo.kill()
    assert not [child for child in children if Path(f"/proc/{child}/exe").exists()], "zombies have no exe"
    assert processes_below(work) == []
    assert list(work.iterdir()) == []
    assert not list(caches.glob(mine))
