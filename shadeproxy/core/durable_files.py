"""Writes small text files so that they survive a kill and a machine that goes down.

Law: after ``replace_durably`` has returned, the file has the new text on the medium. If it raises or is
killed, the file has its earlier text.
"""

import os
from contextlib import suppress
from pathlib import Path


def replace_durably(path: Path, text: str) -> None:
    """Replace the file at ``path`` (blocking I/O). Only its user may read it. Raises OSError."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        write_synced(fresh, text)
        # Rename the finished file: a kill during the write then leaves no file with half of the text.
        fresh.rename(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, text: str) -> None:
    """Write a file in place, and wait until it is on the medium (blocking I/O). Only its user may read it.
    Raises OSError.
    """
    path.touch(mode=0o600)
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
