"""The program that starts the proxy may have closed stdin, stdout or stderr."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_no_file_of_the_cache_gets_the_number_of_a_closed_stream(tmp_path, closed):
    settings = {
        "s3.listen": "127.0.0.1:0",
        "control.listen": "127.0.0.1:0",
        "control.socket": tmp_path / "socket",
        "origin.kind": "file",
        "origin.path": tmp_path,
        "cache.ram.path": tmp_path / "ram",
        "cache.ram.capacity": "8 MiB",
        "cache.disk.capacity": "0",
        "state.path": tmp_path / "state",
    }
    command = [sys.executable, "-m", "shadeproxy", "serve", "--config", "/dev/null"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    log = (tmp_path / "log").open("w")
    started = subprocess.Popen(["sh", "-c", f'exec "$@" {closed}', "sh", *command], stdout=log, stderr=log)
    with started, log:
        deadline = time.monotonic() + 60
        while not (tmp_path / "socket").exists():
            assert started.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        shown = {number: str(Path(f"/proc/{started.pid}/fd/{number}").readlink()) for number in (0, 1, 2)}
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0
    expected = {str(tmp_path / "log"), os.devnull, str(Path("/proc/self/fd/0").readlink())}
    assert set(shown.values()) <= expected
