"""Child processes leave nothing behind. The error of a child that fails says why it failed."""

import os
import select
import signal
import sys
import time
from contextlib import nullcontext, suppress

import pytest

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.demo.images import Photographer
from shadeproxy.demo.processes import held, running, scratch_directory, termination_as_interrupt
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
    # The pidfd becomes readable once the process has ended. This process ignores SIGTERM.
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
    # After an interrupt all results are thrown away. So the processes get SIGKILL at once, without SIGTERM
    # before.
    assert children[0].process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_waits_until_what_is_begun_is_begun_and_what_is_removed_is_gone(tmp_path, number):
    done = []
    # A process in the background ignores some of these signals, so restore their default first.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
            with scratch_directory("demo-", tmp_path) as directory, held():
                for _ in range(3):
                    os.kill(os.getpid(), number)
                done.append(directory)
            done.append("never")
    finally:
        signal.signal(number, before)
    assert done == [directory]
    assert not list(tmp_path.iterdir())


def test_a_signal_while_a_directory_is_removed_does_not_leave_half_of_it(tmp_path, monkeypatch):
    removed = []

    def interrupted(path, *arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        removed.append(path)
        real(path, *arguments, **options)

    real = os.unlink
    with (
        pytest.raises(KeyboardInterrupt),
        termination_as_interrupt(),
        scratch_directory("demo-", tmp_path) as directory,
    ):
        for number in range(9):
            (directory / str(number)).touch()
        monkeypatch.setattr(os, "unlink", interrupted)
    assert len(removed) == 9
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("holding", [held, nullcontext])
def test_an_impatient_second_signal_does_not_interrupt_the_cleaning_up(holding):
    cleaned = []

    def interrupted():
        with termination_as_interrupt():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                with holding():
                    os.kill(os.getpid(), signal.SIGTERM)
                cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert cleaned


def test_a_later_signal_interrupts_again(monkeypatch):
    with termination_as_interrupt():
        for wait_s, interrupts in ((0, True), (0.9, False), (1, True)):
            later_s = time.monotonic() + wait_s
            monkeypatch.setattr(time, "monotonic", lambda later_s=later_s: later_s)
            with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
                os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_during_the_long_import_is_not_lost(monkeypatch):
    class Interrupted:
        """Drops the interrupt, as Python does in callbacks of weak references."""

        def find_spec(self, name, *_):
            with suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
                asked.append(name)

    asked = []
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        Photographer("train")
    assert "sklearn.datasets" in asked


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup ignores SIGHUP in this way.
    try:
        with termination_as_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


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
