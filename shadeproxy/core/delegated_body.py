"""Bodies that a process writes to a tier itself after fetching them, so that the coordinator does not copy
them.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol


def file_id(descriptor: int) -> tuple[int, int]:
    """Return the numbers of device and inode by which an open file differs from every other one."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


class BodyPlace(NamedTuple):
    """The place in a tier that a body is written to: byte ``offset`` in the file of ``segment``, whose
    ``file_id`` is ``file``.
    """

    segment: int
    offset: int
    file: tuple[int, int]


@dataclass(frozen=True, slots=True)
class WrittenBody:
    """A body of ``size_bytes`` that another process has written to its place. ``hashed``: its hash, as a
    record's header carries it.
    """

    size_bytes: int
    hashed: int

    def __len__(self) -> int:
        return self.size_bytes


class BodyWriter(Protocol):
    """Writes a body to a tier by the process that has its bytes."""

    def write_body(self, place: BodyPlace, written: Callable[[WrittenBody | None], None]) -> bool:
        """Let that process write the body to ``place``. Return False, with nothing done, if it cannot.

        ``written`` is called once, as soon as that process no longer writes to the place. It gets None if the
        body was not written completely, or the process has ended. Until then the place belongs to this body.
        """
        ...
