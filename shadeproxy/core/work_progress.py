"""``WorkProgress``: how far a long operation has come."""

from dataclasses import dataclass


@dataclass(slots=True)
class WorkProgress:
    """Counts of objects, and of bytes of bodies. ``listed``: True once ``total`` is final. ``done``: finished
    objects.

    Of the finished objects of a warm, ``resident`` were cached before, ``not_stored`` have a page that won no
    place, and ``failed`` have a page that could not be read; ``bytes`` were read from the origin and stored.
    An object of a purge is finished once it has no page left; ``pages`` and ``bytes`` were dropped. In a dry
    run, all counts are what would be done. ``error``: text of the first failure.
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
