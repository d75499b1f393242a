"""Children: what they leave behind (nothing) and what they say when they fail."""

import os
import select
import signal
import sys

import pytest

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.demo.processes import running, termination_as_interrupt
from shadeproxy.demo.servers import serving

_FAMILY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print(child, flush=True)
time.sleep(600)
"""


def test_descendants_are_gone_when_the_block_ends(tmp_path):
    command = [sys.executable, "-c", _FAMILY]
    with running("family", command, log=tmp_path / "log", env=os.environ, piped=True) as child:
        grandchild = os.pidfd_open(int(child.process.stdout.readline()))
    assert child.process.returncode == -signal.SIGTERM
    # A descriptor of a process is readable once it has ended; this one ignores SIGTERM.
    ended, _, _ = select.select([grandchild], [], [], 30)
    os.close(grandchild)
    assert ended


def test_an_interrupt_ends_them_too(tmp_path):
    command = [sys.executable, "-c", _FAMILY]

    def interrupted():
        with (
            termination_as_interrupt(),
            running("family", command, log=tmp_path / "log", env=os.environ, piped=True) as child,
        ):
            children.append(child)
            child.process.stdout.readline()
            os.kill(os.getpid(), signal.SIGTERM)

    children = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert children[0].process.returncode == -signal.SIGTERM


def test_a_failure_shows_the_end_of_the_log(tmp_path):
    command = [sys.executable, "-c", "import sys; print('so it went', file=sys.stderr); sys.exit(3)"]
    with running("training", command, log=tmp_path / "log", env=os.environ) as child:
        text = str(child.failure())
    assert text == "training ended with status 3; the end of its log:\n  so it went"


def test_a_server_that_cannot_start_says_why(tmp_path):
    settings = {"origin": {"kind": "file", "path": str(tmp_path), "nonsense": 1}}
    with (
        pytest.raises(ShadeProxyError, match=r"origin ended with status 2(.|\n)*origin\.nonsense"),
        serving("origin", settings, tmp_path / "origin"),
    ):
        pass
