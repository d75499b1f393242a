"""Reads, whole or broken off, leave no memory that only the garbage collector could free.

So collections may be rare (app/limits.py), and the memory of a page is free at once.
"""

import subprocess
import sys
from pathlib import Path

_WASTE = Path(__file__).parent / "waste.py"


def test_reads_leave_nothing_for_the_collector(tmp_path):
    done = subprocess.run(
        [sys.executable, str(_WASTE), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "waste").read_text() == ""
