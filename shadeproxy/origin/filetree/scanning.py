"""Lists a tree lazily, in the UTF-8 order of whole keys. Only directories that can hold results are read.

A directory "a" is sorted as "a/", because its keys begin with "a/" ("a-b" < "a/x" < "a0"). Python sorts str
by code points, which is UTF-8 order. While a client pages through a big directory, the directory is read and
sorted only once.
"""

# Keys are strings: pathlib would normalise them, and would take longer than the system call.
# ruff: noqa: PTH116, PTH120

import os
import stat
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from shadeproxy.core.types import ListEntry, ListPage
from shadeproxy.origin.filetree import marker
from shadeproxy.origin.filetree.attributes import etag_of
from shadeproxy.origin.filetree.paths import HIDDEN, is_utf8
from shadeproxy.origin.filetree.pool import MISSING
from shadeproxy.origin.s3ops.answers import iso_date

_WORTH_KEEPING = 1000
# A second change within one tick leaves a directory's mtime as it is. So the names of a directory that
# changed in these last nanoseconds are not reused.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class _Names:
    path: str
    version: tuple[int, int]
    names: list[str]


class Scanner:
    """Lists one tree. Its method blocks, and several threads may call it, because the remembered names are
    replaced as a whole.
    """

    def __init__(self) -> None:
        self._kept: _Names | None = None

    def scan(self, bucket_path: str, prefix: str, start_after: str, max_keys: int) -> ListPage:
        """Return at most ``max_keys`` objects of the bucket in ``bucket_path``. Raises OSError."""
        folder = prefix.rpartition("/")[0]
        if folder and not all(part not in {"", ".", ".."} for part in folder.split("/")):
            return ListPage((), truncated=False)
        base = f"{folder}/" if folder else ""
        entries: list[ListEntry] = []
        root = f"{bucket_path}/{folder}" if folder else bucket_path
        for entry in self._walk(root, base, prefix, start_after):
            if len(entries) == max_keys:
                return ListPage(tuple(entries), truncated=True)
            entries.append(entry)
        self._kept = None
        return ListPage(tuple(entries), truncated=False)

    def _walk(self, path: str, base: str, prefix: str, start_after: str) -> Iterator[ListEntry]:
        if base.startswith(prefix) and base > start_after and (marked := _marker_entry(path, base)):
            yield marked
        names = self._names(path)
        first = max(_segment(start_after, base), _segment(prefix, base))
        if not start_after.startswith(base) and start_after > base:
            return
        for name in islice(names, max(0, bisect_right(names, first) - 1), None):
            key = base + name
            if name.endswith("/"):
                below = key.startswith(prefix) or prefix.startswith(key)
                if below and (key > start_after or start_after.startswith(key)) and key != f"{HIDDEN}/":
                    yield from self._walk(f"{path}/{name[:-1]}", key, prefix, start_after)
            elif key > start_after and key.startswith(prefix):
                entry = _file_entry(f"{path}/{name}", key)
                if entry is not None:
                    yield entry
            elif key > prefix and not key.startswith(prefix):
                return

    def _names(self, path: str) -> list[str]:
        """Return the sorted names in a directory; names of sub-directories end with "/". Return [] if the
        directory does not exist.
        """
        try:
            found = os.stat(path)
            version = (found.st_mtime_ns, found.st_ino)
            kept = self._kept
            if kept is not None and (kept.path, kept.version) == (path, version):
                return kept.names
            with os.scandir(path) as listed:
                names = sorted(name for entry in listed if (name := _listed_name(entry)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        if len(names) > _WORTH_KEEPING and time.time_ns() - found.st_mtime_ns > _SETTLED_NS:
            self._kept = _Names(path, version, names)
        return names


def _segment(key: str, base: str) -> str:
    """Return the name, in the directory ``base``, that leads to ``key``; "" if ``key`` is not in ``base``.
    Names that sort before it lead only to keys before ``key``.
    """
    return key[len(base) :].partition("/")[0] if key.startswith(base) else ""


def _listed_name(entry: "os.DirEntry[str]") -> str:
    if not is_utf8(entry.name):
        return ""
    try:
        if not entry.is_dir():
            return entry.name
    except OSError as error:
        if error.errno not in MISSING:
            raise
        return ""  # This is a link to itself.
    if entry.is_symlink():
        parent = os.path.realpath(os.path.dirname(entry.path))
        if f"{parent}/".startswith(f"{os.path.realpath(entry.path)}/"):
            return ""  # This is a link to one of its own parents. Following it would never end.
    return f"{entry.name}/"


def _file_entry(path: str, key: str) -> ListEntry | None:
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno not in MISSING:
            raise  # Without this file the listing would look complete.
        return None  # The file was removed meanwhile, or it is a link to nothing.
    if not stat.S_ISREG(found.st_mode):
        return None
    return ListEntry(key, found.st_size, etag_of(found), iso_date(found.st_mtime))


def _marker_entry(path: str, key: str) -> ListEntry | None:
    if not key or not marker.exists(path):
        return None
    meta = marker.describe_marker(path)
    return ListEntry(key, 0, meta.etag, iso_date(os.stat(path).st_mtime))
