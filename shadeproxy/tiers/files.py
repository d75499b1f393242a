"""The segment files of a directory: their numbers, and those that wait to be used.

``create`` does I/O on whatever thread runs it; all else belongs to the store's thread. A file that has lost
its last record waits in ``ready`` for the next one, without blocks; ``open`` deletes those of an earlier
process. So nothing is unlinked while the store runs.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from shadeproxy.tiers.location import NUMBERS
from shadeproxy.tiers.segment import SUFFIX, Segment


class SegmentFiles:
    """Files named by number in ``directory``, each of ``segment_bytes``, for ``group_id`` to read."""

    def __init__(self, directory: Path, segment_bytes: int, group_id: int | None = None) -> None:
        self.group_id = group_id
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._numbers = itertools.cycle(range(NUMBERS))
        self._taken: set[int] = set()
        self.ready: deque[Segment] = deque()
        self.creating = False

    def existing(self) -> Iterator[tuple[int, Path]]:
        """Number and path of every file that is there, in order."""
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            if path.stem.isdecimal() and int(path.stem) < NUMBERS:
                yield int(path.stem), path

    def keep(self, number: int) -> None:
        """Take the number of an existing file."""
        self._taken.add(number)

    def new_number(self) -> int:
        """A free number, taken now."""
        number = next(number for number in self._numbers if number not in self._taken)
        self._taken.add(number)
        return number

    def create(self, number: int) -> None:
        """Make a file and append it to ``ready``. Raises OSError."""
        path = self._directory / f"{number:06d}{SUFFIX}"
        try:
            self.ready.append(Segment(path, number, size_bytes=self._segment_bytes, group_id=self.group_id))
        except OSError:
            self._taken.discard(number)
            raise
        finally:
            self.creating = False
