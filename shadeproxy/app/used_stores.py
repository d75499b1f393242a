"""Remembers, in a file of the state directory, which stores (tiers) the latest start of the proxy used.

A write erases the old pages of its object in every tier. A tier that a start leaves out, because its table
was deleted from the configuration or its disk was away, keeps its old pages. So when that tier is back, all
of its pages are checked with the origin before they are used.

Law: a start records its stores before it serves. A store that the latest start did not record counts as left
out. If there is no file, as after an upgrade, no store counts as left out. If the record cannot be written,
an empty file replaces it, so that every store counts as left out. If the empty file cannot be written either,
the start is refused.
"""

from collections.abc import Iterable
from pathlib import Path

import structlog

from shadeproxy.core.durable_files import replace_durably, write_synced
from shadeproxy.state.directory import refusal

_log = structlog.get_logger(__name__)
NAME = "stores"


class UsedStores:
    """The record of stores in ``directory``. Stores are named by the ids of ``tiers/version.py``."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._known: frozenset[str] | None = None

    def read(self) -> None:
        """Read the record of the latest start (I/O). If the file cannot be read, every store counts as left
        out.
        """
        try:
            self._known = frozenset(self._path.read_text("ascii").split())
        except FileNotFoundError:
            self._known = None
        except (OSError, ValueError):
            self._known = frozenset()

    def was_left_out(self, store_id: int) -> bool:
        """Return whether the latest start did not use this store."""
        return self._known is not None and _name(store_id) not in self._known

    def record(self, store_ids: Iterable[int]) -> None:
        """Record the stores that this start uses (I/O). Call it before the proxy serves. Raises
        ConfigError.
        """
        try:
            replace_durably(self._path, "".join(f"{_name(one)}\n" for one in store_ids))
        except OSError as error:
            _log.warning("the next start checks every cached page", reason=error.strerror)
            self._forget()

    def _forget(self) -> None:
        try:
            write_synced(self._path, "")  # An empty file needs no room, even on a full medium.
        except OSError as error:
            raise refusal(self._path, error) from error


def _name(store_id: int) -> str:
    return f"{store_id:016x}"
