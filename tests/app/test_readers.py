"""A reader process that is still starting when its owner dies goes with it."""

import os
import subprocess
import sys
import time

from shadeproxy.app.readers import CRADLE
from shadeproxy.bench.machine import is_alive

_OWNER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], "0", str(os.getpid())], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_it_does_not_outlive_its_owner(tmp_path):
    package = tmp_path / "shadeproxy" / "app"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    (package / "reader.py").write_text("import time\nprint(flush=True)\ntime.sleep(600)\n")
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, CRADLE],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    )
    with owner:
        reader = int(owner.stdout.readline())
        assert is_alive(reader)
        owner.kill()
    deadline = time.monotonic() + 60
    while is_alive(reader):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_ends_when_its_owner_is_gone_already():
    assert subprocess.run([sys.executable, "-c", CRADLE, "0", "1"], check=False).returncode == 1
