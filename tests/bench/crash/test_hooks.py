"""The hooks of the crash runs find every function of the proxy that they wrap."""

import subprocess
import sys

_TIE = """
import sys
from pathlib import Path
from shadeproxy_bench.reliability.crash import hooks
from shadeproxy_bench.reliability.crash.board import Board
from shadeproxy_bench.reliability.crash.objects import PAGE_BYTES
from shadeproxy_bench.reliability.kit.parts import shorten_parts
hooks.small_segments()
shorten_parts(PAGE_BYTES)
hooks.tie(Board(Path(sys.argv[1])), 1)
"""


def test_the_hooks_fit_the_proxy(tmp_path):
    # Run in a process of its own, because hooks cannot be removed again.
    run = subprocess.run(
        [sys.executable, "-c", _TIE, str(tmp_path / "board")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
