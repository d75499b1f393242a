"""A look of a command at a directory whose disk may hang.

Law: neither the command nor its end waits longer than LOOK_S for a look. So each look is made by a process
of its own. A thread would not do: a call on a disk that hangs cannot be interrupted, and a process ends only
after the calls of all its threads have returned.
"""

import os
import signal
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic
from typing import Generic, NoReturn, TypeVar

from shadeproxy.app.bounded_looks import LOOK_S

Seen = TypeVar("Seen")
_STANDARD = 3  # Standard input, output and errors.


class Look(Generic[Seen]):
    """One look, which begins at once. Its result is sent through a pipe, so it must be possible to pickle."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._until_s = monotonic() + LOOK_S
        self._seen: Seen
        self._error: Exception | None = None
        self._from, to = Pipe(duplex=False)
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, whose locks a child could find taken. The command has only those
            # of numpy, and they take no lock that a look needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            _look(look, to)
        to.close()

    def hangs(self) -> bool:
        """Return whether the look has taken too long. Wait until that is known."""
        if not self._from.closed:
            with self._from:
                if self._from.poll(max(self._until_s - monotonic(), 0.0)):
                    self._seen, self._error = self._from.recv()
                    os.waitpid(self._pid, 0)
                else:
                    self._error = TimeoutError()
                    os.kill(self._pid, signal.SIGKILL)
        return isinstance(self._error, TimeoutError)

    def result(self) -> Seen:
        """Return the result of the look. Raises TimeoutError if the look hangs, and what the look raised."""
        self.hangs()
        if self._error is not None:
            raise self._error
        return self._seen


def _look(look: Callable[[], object], to: Connection) -> NoReturn:
    """Make the look, send its result, and end this process, which is a child of the command."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(_STANDARD):
            # While the child has the command's output open, a pipe to another program does not end.
            os.dup2(null, descriptor)
        try:
            to.send((look(), None))
        except Exception as error:  # noqa: BLE001 - ``result`` raises it
            to.send((None, error))
    finally:
        os._exit(0)
