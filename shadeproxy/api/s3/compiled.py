"""Whether a compiled module belongs to the source beside it.

Law: what was compiled of another version is not used. After a checkout of other sources the module of the
last install is still there; the proxy then runs as if nothing had been compiled.
"""

import hashlib
from pathlib import Path


def is_made_of(digest: str, source: Path) -> bool:
    """Whether ``digest``, which the build writes into the module, is the SHA-256 of ``source``."""
    try:
        return hashlib.sha256(source.read_bytes()).hexdigest() == digest
    except OSError:
        return False
