"""Finds out whether a compiled module fits the sources beside it.

Law: a module that was compiled from other sources is not used. Such a module is left over when other sources
are checked out. The proxy then runs without compiled code.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path


def is_made_of(digest: str, sources: Sequence[str], beside: str) -> bool:
    """Return whether ``digest``, which the build has written into a module, is the SHA-256 of the module's
    sources.

    ``sources``: the names of the source files. ``beside``: the path of any file in their directory.
    """
    found = hashlib.sha256()
    try:
        for source in sources:
            found.update(Path(beside).with_name(source).read_bytes())
    except OSError:
        return False
    return found.hexdigest() == digest
