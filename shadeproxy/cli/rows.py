"""The rows of ``shadeproxy check``."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One thing that was tried. ``change``: what to do about a failure or a warning."""

    name: str
    ok: bool
    detail: str
    change: str = ""
