"""Writes small text files so that they survive a kill of the process and a power cut.

Law: once ``replace_durably`` has returned, the file has the new text on the medium. If the call raises, or
the process is killed during the call, the file has either its old text or the new one, never a mixture.
"""

import os
from contextlib import suppress
from pathlib import Path


def replace_durably(path: Path, text: str) -> None:
    """Replace the file at ``path`` by one with ``text``, which only its user may read. Blocks. Raises
    OSError.
    """
    fresh = path.with_name(f"{path.name}.new")
    try:
        write_synced(fresh, text)
        # Rename the file only when it is complete: otherwise a kill could leave a file with half of the text.
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
    """Write a file in place, and wait until it is on the medium. Only its user may read it. Blocks. Raises
    OSError.
    """
    path.touch(mode=0o600)
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
