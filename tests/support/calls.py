"""Records which functions of the proxy are called."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]


@contextmanager
def recorded() -> Iterator[list[tuple[str, str]]]:
    """Each call in this thread as (file below the root, qualified name), in order."""
    calls: list[tuple[str, str]] = []
    top = f"{ROOT}/"

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{top}shadeproxy/"):
            calls.append((code.co_filename.removeprefix(top), code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)
