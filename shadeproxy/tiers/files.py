"""The segment files of a directory: their numbers, and the empty files that wait to be used.

``create`` does I/O and may run on any thread. Only the store's thread uses everything else. A segment that
has lost its last record gives back its blocks, and waits in ``ready`` to be used again. So the store deletes
no file while it runs. The next start deletes empty segments.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from shadeproxy.core.errors import ConfigError
from shadeproxy.tiers import catalogue
from shadeproxy.tiers.location import MOST_SEGMENT_BYTES, NUMBERS
from shadeproxy.tiers.medium import SYSTEM, Calls
from shadeproxy.tiers.segment import BLOCK_BYTES, SUFFIX, Segment

_LEAST_SEGMENT_BYTES = 64 * 1024 * 1024
# A segment costs two descriptors and one mapping (vm.max_map_count: 65,530), so a large tier gets larger
# segments instead of more segments.
_SEGMENTS_WANTED = 256


def default_segment_bytes(capacity_bytes: int) -> int:
    """Return the segment size: 64 MiB for a capacity of up to 16 GiB. A larger capacity gets larger segments,
    about 256 of them, each of at most 2 GiB.
    """
    wanted = 1 << (capacity_bytes // _SEGMENTS_WANTED).bit_length()
    return min(max(_LEAST_SEGMENT_BYTES, wanted), MOST_SEGMENT_BYTES)


def most_segments(capacity_bytes: int, segment_bytes: int) -> int:
    """Return the largest number of segments of a tier: twice as many as its capacity fills, and a few more,
    but at most half of all segment numbers.
    """
    return min(2 * -(-capacity_bytes // segment_bytes) + 4, NUMBERS // 2)


def check_segment_bytes(segment_bytes: int | None, capacity_bytes: int) -> int:
    """Return ``segment_bytes`` or its default. Raises ConfigError for a length that no segment can have."""
    if segment_bytes is None:
        return default_segment_bytes(capacity_bytes)
    if segment_bytes % BLOCK_BYTES or not 0 < segment_bytes <= MOST_SEGMENT_BYTES:
        raise ConfigError(
            f"a segment of {segment_bytes} bytes: choose a multiple of {BLOCK_BYTES}, "
            f"at most {MOST_SEGMENT_BYTES}"
        )
    return segment_bytes


Submit = Callable[[Callable[[], None]], object]


def run_inline(action: Callable[[], None]) -> None:
    """Run I/O at once. A RAM tier uses this function as its ``submit``."""
    action()


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:06d}{SUFFIX}"


class SegmentFiles:
    """Segment files of ``segment_bytes`` each, named by number in ``directory``, readable by ``group_id``."""

    def __init__(
        self, directory: Path, segment_bytes: int, group_id: int | None = None, *, calls: Calls = SYSTEM
    ) -> None:
        self.group_id = group_id
        self._calls = calls
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._numbers = itertools.cycle(range(NUMBERS))
        self._taken: set[int] = set()
        self.ready: deque[Segment] = deque()
        self.creating = False

    def existing(self) -> Iterator[tuple[int, Path]]:
        """Yield number and path of every existing segment, in order of the numbers. Delete unfinished
        segments and catalogues, and catalogues without a segment.
        """
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            if not path.stem.isdecimal() or int(path.stem) >= NUMBERS:
                continue
            if path.stat().st_size < BLOCK_BYTES:
                # A process created this file, and ended before it had set the file's size.
                path.unlink()
            else:
                yield int(path.stem), path
        for path in self._directory.glob(f"*{catalogue.SUFFIX}"):
            if not path.with_suffix(SUFFIX).exists():
                # The segment of this catalogue is gone. Delete the catalogue, because the next segment of
                # this number would use it as its own.
                path.unlink()
        for path in self._directory.glob(f"*{catalogue.FRESH_SUFFIX}"):
            path.unlink()

    def keep(self, number: int, path: Path) -> Segment:
        """Open an existing file and mark its number as used. Raises OSError."""
        segment = Segment(path, number, calls=self._calls)
        self._taken.add(number)
        return segment

    def forget(self, number: int) -> None:
        """Free the number of a deleted file."""
        self._taken.discard(number)

    def new_number(self) -> int:
        """Return a free number, and mark it as used."""
        number = next(number for number in self._numbers if number not in self._taken)
        self._taken.add(number)
        return number

    def create(self, number: int) -> None:
        """Create a segment file and append it to ``ready``. Raises OSError."""
        path = self._directory / segment_name(number)
        try:
            size_bytes, group_id = self._segment_bytes, self.group_id
            self.ready.append(
                Segment(path, number, size_bytes=size_bytes, group_id=group_id, calls=self._calls)
            )
        except OSError as error:
            self._taken.discard(number)
            if not isinstance(error, FileExistsError):
                # The next attempt makes a file of another name, so this one must leave none.
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            raise
        finally:
            self.creating = False
