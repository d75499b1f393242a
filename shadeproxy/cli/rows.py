"""The rows of ``shadeproxy check``."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The result of one check. ``change``: what to do about a failure or a warning."""

    name: str
    ok: bool
    detail: str
    change: str = ""
