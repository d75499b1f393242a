"""Processes that a run kills and starts again."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from shadeproxy.demo.processes import Child, running
from shadeproxy.demo.servers import plain_environment

_GONE_S = 60.0


class Phoenix:
    """A process that can be ended and started again. In turn N it runs ``command(N)``, with the log
    ``work``/``name``-N.log.

    This is a context manager, at whose end the process is gone.
    """

    def __init__(
        self, name: str, work: Path, command: Callable[[int], Sequence[str]], *, piped: bool
    ) -> None:
        self.name = name
        self.turn = -1
        self.logs: list[Path] = []
        self._work, self._command, self._piped = work, command, piped
        self._stack = ExitStack()
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def child(self) -> Child:
        """The process of the latest start."""
        assert self._child is not None, "started before it is looked at"
        return self._child

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def start(self) -> Child:
        """Start the next process. If the previous process still runs, end it first."""
        self._stack.close()
        self.turn += 1
        self.logs.append(self._work / f"{self.name}-{self.turn}.log")
        # Remove the AWS variables: if they name an endpoint, the SDK bypasses the proxy.
        env = {key: value for key, value in plain_environment().items() if not key.startswith("AWS_")}
        self._child = self._stack.enter_context(
            running(self.name, self._command(self.turn), log=self.logs[-1], env=env, piped=self._piped)
        )
        return self._child

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the process, wait until it has ended, and return its status. The process's
        children get no signal.
        """
        self.child.process.send_signal(number)
        return self.child.process.wait(_GONE_S)

    def ended(self) -> bool:
        """Return whether the process has ended for any reason."""
        return self.child.process.poll() is not None


def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until the condition is true. Return False if that takes longer than ``limit_s``, and otherwise
    True.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
