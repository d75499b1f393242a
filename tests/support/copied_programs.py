"""Programs that the product starts by ``subprocess``, started as copies instead (copied.py)."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from shadeproxy.demo import processes
from tests.support.copied import PROXY, TRAINING, Copy, Original, original

_PROGRAMS = {"shadeproxy.demo.train": TRAINING}
"""The modules that a program imports, for programs that are no proxy."""


def start(
    command: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes],
    stderr: IO[bytes],
    env: Mapping[str, str],
    start_new_session: bool,
) -> Copy | subprocess.Popen[bytes]:
    """Start ``command``: as a copy if a copy behaves in the same way, otherwise by ``subprocess.Popen``."""
    interpreter, *arguments = command
    if [interpreter, *arguments[:1]] == [sys.executable, "-m"]:
        first = original(_PROGRAMS.get(arguments[1], PROXY))
        if first.can_start(env):
            return _copy(first, arguments, stdin, stdout, stderr=stderr, env=env, session=start_new_session)
    return subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, start_new_session=start_new_session
    )


def _copy(
    first: Original,
    arguments: list[str],
    stdin: int,
    stdout: int | IO[bytes],
    *,
    stderr: IO[bytes],
    env: Mapping[str, str],
    session: bool,
) -> Copy:
    with ExitStack() as theirs:

        def pipe(*, written_here: bool) -> tuple[IO[bytes], int]:
            """Make a pipe. Return this process's end of it as a file, and the program's end as a
            descriptor.
            """
            read, write = os.pipe()
            theirs.callback(os.close, read if written_here else write)
            return (os.fdopen(write, "wb"), read) if written_here else (os.fdopen(read, "rb"), write)

        ours_in, ours_out = None, None
        if stdin == subprocess.PIPE:
            ours_in, stdin = pipe(written_here=True)
        else:
            stdin = theirs.enter_context(Path(os.devnull).open("rb")).fileno()
        if stdout == subprocess.PIPE:
            ours_out, stdout = pipe(written_here=False)
        copy = first.start(
            arguments,
            stdin=stdin,
            stdout=stdout if isinstance(stdout, int) else stdout.fileno(),
            stderr=stderr.fileno(),
            environment=env,
            own_session=session,
        )
    copy.stdin, copy.stdout = ours_in, ours_out
    return copy


@pytest.fixture(autouse=True)
def _copied_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``shadeproxy.demo.processes`` start copies, but not in tests with the mark ``new_interpreter``."""
    if not request.node.get_closest_marker("new_interpreter"):
        stand_in: dict[str, Any] = {"PIPE": subprocess.PIPE, "DEVNULL": subprocess.DEVNULL}
        stand_in |= {"Popen": start, "TimeoutExpired": subprocess.TimeoutExpired}
        monkeypatch.setattr(processes, "subprocess", SimpleNamespace(**stand_in))
