"""``WorkProgress``: how far a long operation has come."""

from dataclasses import dataclass


@dataclass(slots=True)
class WorkProgress:
    """Counts of objects, and of bytes of bodies. ``listed``: True once ``total`` is final.

    ``done``: finished objects. A warm counts of these ``resident``, which were cached before, ``not_stored``,
    with a page that won no place, and ``failed``, with a page that could not be read; ``bytes`` are those
    read from the origin and stored. A purge counts objects without a page left as ``done``, and ``pages`` and
    ``bytes`` that it dropped. In a dry run all this is what would be done. ``error``: text of the first
    failure.
    """

    listed: bool = False
    total: int = 0
    total_bytes: int = 0
    done: int = 0
    pages: int = 0
    bytes: int = 0
    resident: int = 0
    not_stored: int = 0
    failed: int = 0
    error: str = ""
