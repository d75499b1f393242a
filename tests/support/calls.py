"""A record of the Python functions that a thread calls."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]


@contextmanager
def recorded() -> Iterator[list[CodeType]]:
    """Record, in order, the code of each Python function that this thread enters, or continues
    after a yield.
    """
    calls: list[CodeType] = []

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            calls.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def steps(calls: Sequence[CodeType]) -> list[tuple[str, str]]:
    """Return those calls that are of the proxy's code, as (path of the file in the repository, qualified
    name).
    """
    return [
        (code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname)
        for code in calls
        if code.co_filename.startswith(f"{ROOT}/shadeproxy/")
    ]
