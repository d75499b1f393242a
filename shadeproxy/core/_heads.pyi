from collections.abc import Callable
from typing import Generic, TypeVar

from shadeproxy.core.types import Headers

SOURCE: str
"""SHA-256 of the sources from which the module was compiled; the build adds it."""
SOURCES: tuple[str, ...]
"""Names of the sources from which the module was compiled; the build adds them."""

_Head = TypeVar("_Head")

class HeadReader(Generic[_Head]):
    def __init__(
        self, *, places_of: Callable[..., object], is_kept: Callable[[bool, str], bool], head: type[_Head]
    ) -> None: ...
    def read(self, data: bytes | bytearray, held: int) -> _Head | None: ...

def render(
    start: str, headers: Headers, *, id2: str, request_id: str, date: str, source: str
) -> bytes | None: ...
def render_whole(
    headers: Headers,
    etag: str,
    size: int,
    checksums: bool,
    *,
    id2: str,
    request_id: str,
    date: str,
    source: str,
) -> bytes | None: ...
