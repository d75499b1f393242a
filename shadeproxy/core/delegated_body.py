"""Types for a delegated write: the worker that fetched a body writes it to a tier itself, so that the
coordinator need not copy the body.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol


def file_id(descriptor: int) -> tuple[int, int]:
    """Return device and inode of an open file, by which it differs from every other file."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


class BodyPlace(NamedTuple):
    """The place in a tier to which a body is written: byte ``offset`` in the file of ``segment``. ``file``:
    the ``file_id`` of that file.
    """

    segment: int
    offset: int
    file: tuple[int, int]


@dataclass(frozen=True, slots=True)
class WrittenBody:
    """A body of ``size_bytes`` that another process has written to its place. ``hashed``: the hash of the
    body, in the form that the header of its record needs.
    """

    size_bytes: int
    hashed: int

    def __len__(self) -> int:
        return self.size_bytes


class BodyWriter(Protocol):
    """Lets the process that has the bytes of a body write them to a tier."""

    def write_body(self, place: BodyPlace, written: Callable[[WrittenBody | None], None]) -> bool:
        """Let the process that has the bytes write them to ``place``. Return False, and do nothing, if this
        process cannot write them.

        ``written`` is called once, when that process certainly no longer writes to the place. Its argument is
        None if the body was not written completely, or if the process has ended. Until this call, the caller
        must not use the place for anything else.
        """
        ...
