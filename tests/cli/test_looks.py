"""A look at a disk that hangs holds up neither the command nor its end."""

import os
import subprocess
import sys

import pytest

from shadeproxy.cli.looks import Look
from shadeproxy.core.errors import ConfigError


def test_a_look_returns_its_result_or_raises_its_error():
    assert Look(lambda: ["seen"]).result() == ["seen"]
    with pytest.raises(ConfigError, match="not so"):
        Look(lambda: (_ for _ in ()).throw(ConfigError("not so"))).result()


def test_a_look_that_hangs_leaves_no_output_open():
    """The child cannot be ended while it hangs, so it must not hold what the command was given."""
    code = (
        "import os, time; from shadeproxy.cli import looks\n"
        "looks.LOOK_S = 0.1; os.kill = lambda *_: None\n"
        "look = looks.Look(lambda: time.sleep(20)); print(look.hangs(), look.hangs(), look._pid)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, timeout=15
    )
    *hung, child = ended.stdout.split()
    os.kill(int(child), 9)
    assert hung == ["True", "True"]
