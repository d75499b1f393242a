"""``WorkProgress``: how far a long operation has come."""

from dataclasses import dataclass


@dataclass(slots=True)
class WorkProgress:
    """Counts of objects and of bytes of bodies. ``listed``: True once ``total`` is final. ``done``: number of
    objects that are finished.

    When a prefix is warmed, three counts concern its finished objects: ``resident`` were cached before,
    ``not_stored`` have a page that got no place, and ``failed`` have a page that could not be read. ``bytes``
    were read from the origin and stored. When a prefix is purged, an object is finished once it has no page
    left; ``pages`` and ``bytes`` were dropped. In a dry run, the counts are those that the operation itself
    would have. ``error``: text of the first failure.
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
