"""A stop of the process takes a bounded time, also with a disk that hangs."""

import signal
import subprocess
import sys
import time

CODE = """
import sys, time
from shadeproxy.app import serve
from shadeproxy.config import Settings
from shadeproxy.tiers.store import SegmentStore
serve.STOP_S = 2.0
SegmentStore.close = lambda *_: time.sleep(600)
serve.serve(Settings.load(None, sys.argv[1:]))
"""


def test_a_stop_does_not_wait_for_ever_for_a_disk_that_hangs(tmp_path):
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
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([sys.executable, "-c", CODE, *settings], stderr=log) as process,
    ):
        try:
            deadline_s = time.monotonic() + 60
            while "ready" not in (tmp_path / "log").read_text():
                assert process.poll() is None
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 1
        finally:
            process.kill()
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert "a disk hangs, stopped without it" in last
    assert "after_s=2.0" in last
