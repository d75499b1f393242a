"""A disk that hangs is named at a start, and holds a stop up for a bounded time."""

import signal
import subprocess
import sys
import time

import pytest

START = """
import sys, time
from shadeproxy.app import serve
from shadeproxy.config import Settings
from shadeproxy.tiers.store import SegmentStore
serve.SLOW_START_S, serve.STOP_S = 0.1, 2.0
{hang} = lambda *_: time.sleep(600)
serve.serve(Settings.load(None, sys.argv[1:]))
"""


@pytest.fixture
def serve(tmp_path):
    """Return a function that starts a proxy in which a call of the name ``hang`` hangs, and waits until its
    log has the text ``said``.
    """
    settings = [
        "s3.listen=127.0.0.1:0",
        "control.listen=127.0.0.1:0",
        f"control.socket={tmp_path / 'socket'}",
        "origin.kind=file",
        f"origin.path={tmp_path}",
        f"cache.ram.path={tmp_path / 'ram'}",
        "cache.ram.capacity=8 MiB",
        "cache.disk.capacity=0",
        f"state.path={tmp_path / 'state'}",
    ]
    started = []

    def serve(hang, said):
        code, path = START.format(hang=hang), tmp_path / "log"
        with path.open("w") as log:
            process = subprocess.Popen([sys.executable, "-c", code, *settings], stderr=log)
        started.append(process)
        deadline_s = time.monotonic() + 60
        while said not in path.read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        return process, path

    yield serve
    for process in started:
        process.kill()
        process.wait()


def test_a_stop_does_not_wait_for_ever_for_a_disk_that_hangs(serve):
    process, log = serve("SegmentStore.close", "ready")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 1
    last = log.read_text().splitlines()[-1]
    assert "a disk hangs, stopped without it" in last
    assert "after_s=2.0" in last


def test_a_start_that_a_disk_holds_up_says_so(serve):
    _, log = serve("serve.require_fit", "the start takes long")
    assert "`shadeproxy check`" in log.read_text()
