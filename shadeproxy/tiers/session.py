"""A session: the use of a tier's directory by one process. Its start decides whether the records can be
trusted.

During a session the directory has the mark ``boot``. The mark stays if the session did not end in order. It
holds the id of the machine's boot, the number of the session, and the path of its tombstones. At an orderly
end the mark is renamed to ``stopped``.

A start that finds a mark of this boot reads the tombstones. If the mark is of another boot, or the tombstones
are lost or belong to another session, every record is in doubt: it is checked with the origin before it is
used. Two more cases put every record in doubt. Tombstones of a later session than the mark's show that the
medium was restored from a copy. A directory that the proxy's latest start left out missed the writes since
then.

The doubt ends when a session has checked every record and ends in order. But where tombstones were lost, the
doubt cannot end before the machine has restarted, because until then the page cache may hide the true
contents of the medium.
"""

import logging
import secrets
from contextlib import suppress
from pathlib import Path

from xxhash import xxh3_64_intdigest

from shadeproxy.core.durable_files import replace_durably
from shadeproxy.core.errors import TierError
from shadeproxy.tiers import legacy_tombstones
from shadeproxy.tiers.tombstones import FRESH_SUFFIX, SUFFIX, Tombstones

_logger = logging.getLogger(__name__)

BOOT_NAME = "boot"
"""Name of the mark while the directory is in use."""
STOPPED_NAME = "stopped"
"""Name of the mark after a session that ended in order."""


class Session:
    """One use of ``directory``. ``boot``: id of this boot of the machine. ``place``: the directory of the
    tombstones.

    ``lost_lists`` counts tombstone files that were lost or damaged.
    """

    def __init__(self, directory: Path, *, boot: str, place: Path, store_id: int) -> None:
        self.directory = directory
        self._boot = boot
        self._cut_off = False  # True if the last session ended because the machine went down.
        self._in_doubt = False
        self._doubt_ends = False  # True if checking every record ends the doubt.
        self._before: Path | None = None  # Path of the last session's tombstones, as its mark names it.
        self.lost_lists = 0
        self.tombstones = Tombstones(place / f"{store_id:016x}{SUFFIX}")

    @property
    def unflushed(self) -> bool:
        """True if every record is in doubt."""
        return self.tombstones.epoch != 0

    @property
    def epoch(self) -> int:
        """A number that changes with each boot, and whenever all records are put in doubt."""
        return xxh3_64_intdigest(f"{self._boot}{self.tombstones.epoch or ''}".encode())

    # ------------------------------------------------------------------ begin

    def begin(self, *, left_out: bool = False) -> None:
        """Judge the state that the last session left, and begin a new session. ``left_out``: the proxy has
        served without this directory since the last session. Raises OSError.
        """
        is_lost = self._look() | self._take_over_list()
        if left_out:
            _logger.warning("%s was not used by the latest start: every page is checked", self.directory)
        self._in_doubt = is_lost or left_out or self._cut_off
        # When every record has been checked with the origin, the doubt ends. But while the page cache may
        # hide that an erasure was lost, the doubt must go on.
        self._doubt_ends = self._cut_off or (not is_lost and self.tombstones.doubt_ends)
        number = secrets.randbits(63) + 1
        try:
            self._begin_list(number)
            mark = f"{self._boot.strip()}\n{number:016x}\n{self.tombstones.path}\n"
            # The mark must reach the medium before any change of the session does.
            replace_durably(self.directory / BOOT_NAME, mark)
            self.tombstones.begun()
        except BaseException:
            self.tombstones.close()
            raise
        (self.directory / legacy_tombstones.NAME).unlink(missing_ok=True)
        if self._before is not None and self._before != self.tombstones.path:
            # A later start may keep its tombstones at this path again. It would then take an old file for the
            # file of a later session.
            with suppress(OSError):
                self._before.unlink()

    def _begin_list(self, number: int) -> None:
        """Begin the tombstones of session ``number``. If their directory refuses the file, keep it in the
        cache directory.
        """
        try:
            self._open_list(number)
        except OSError as error:
            place, name = self.tombstones.path.parent, self.tombstones.path.name
            if place == self.directory:
                raise
            _logger.warning(
                "the tombstones cannot be kept in %s (%s): they are kept in %s, where each name"
                " waits for the disk; make room there and restart",
                place,
                error.strerror,
                self.directory,
            )
            self.tombstones = self.tombstones.elsewhere(self.directory / name)
            self._open_list(number)

    def _open_list(self, number: int) -> None:
        self.tombstones.open()
        if self._in_doubt:
            self.tombstones.doubt_all(ends=self._doubt_ends)
        self.tombstones.begin(number)

    def _look(self) -> bool:
        """Return whether erased records of which no tombstone names the object may be readable again."""
        mark = _lines(self.directory / BOOT_NAME)
        if mark is None:
            return not self._is_where_it_stopped()
        self._cut_off = mark[0] != self._boot.strip()
        if len(mark) == 1:
            # The mark is of an earlier release, which kept no tombstones.
            return False
        self._before = self._list_of(mark)
        return not self._take_over(mark[1])

    def _is_where_it_stopped(self) -> bool:
        """Return whether the directory is as the last orderly end left it, as far as its marks tell."""
        stopped = _lines(self.directory / STOPPED_NAME)
        number = stopped[1] if stopped is not None and len(stopped) > 1 else f"{0:016x}"
        self._before = None if stopped is None else self._list_of(stopped)
        lists = [self.tombstones]
        if self._before is not None and self._before != self.tombstones.path:
            lists.append(Tombstones(self._before))
        for one in lists:
            found = self._read(one)
            if found is None or (found and f"{one.session:016x}" != number):
                _logger.warning("%s is not as it was left: every page is checked", self.directory)
                self.lost_lists += 1
                self.tombstones.found.clear()
                return False
        # Keep the number of the old session: if this start is killed before it writes its mark, the next
        # start must not take the tombstones for those of a later session.
        self.tombstones.session = _number(number)
        return True

    def _list_of(self, mark: list[str]) -> Path | None:
        """Return the path of the tombstones that this mark names; None if they belong to another cache."""
        path = Path(mark[2] if len(mark) > 2 else "")
        return path if path.name == self.tombstones.path.name else None

    def _take_over(self, number: str) -> bool:
        """Take over the tombstones of session ``number``. Return False if they are lost or belong to another
        session.
        """
        theirs = Tombstones(self._before or Path())
        known = self._read(theirs) and number in {f"{one:016x}" for one in (theirs.session, theirs.coming)}
        if known:
            self.tombstones.found, self.tombstones.epoch = theirs.found, theirs.epoch
            self.tombstones.session = _number(number)
        elif not self._cut_off:
            _logger.warning("%s: the tombstones are lost: every page is checked", self.directory)
            self.lost_lists += 1
        return bool(known)

    def _take_over_list(self) -> bool:
        """Take over the list of overwritten objects that an earlier release kept. Return whether the list is
        damaged.
        """
        try:
            self.tombstones.found |= legacy_tombstones.read_list(self.directory)
        except TierError as error:
            _logger.warning("%s: the tombstones are lost: %s", self.directory, error)
            self.lost_lists += 1
            return True
        return False

    def _read(self, tombstones: Tombstones) -> bool | None:
        """Read the tombstones. Return whether there was a file; None if the file is damaged."""
        try:
            return tombstones.read()
        except (TierError, OSError, ValueError) as error:
            _logger.warning("the tombstones of %s: %s", self.directory, error)
            return None

    # ------------------------------------------------------------------ end

    def end(self, *, clean: bool, checked: bool = False) -> None:
        """End the session. ``clean``: every erasure is known to be on the medium. ``checked``: every record
        was checked with the origin during this session. Raises OSError.

        The doubt goes on unless both are true: an unchecked page is as doubtful as before.
        """
        try:
            if clean and checked and self.unflushed and self.tombstones.doubt_ends:
                self.tombstones.trust_all()
            if clean and self.tombstones.at_rest:
                (self.directory / BOOT_NAME).rename(self.directory / STOPPED_NAME)
        finally:
            self.tombstones.close()


def lists_of(directory: Path, store_id: int) -> list[Path]:
    """Return the tombstone files of this store, finished or not, that lie outside ``directory``. Raises
    OSError.
    """
    name = f"{store_id:016x}{SUFFIX}"
    marks = [_lines(directory / mark) for mark in (BOOT_NAME, STOPPED_NAME)]
    paths = {Path(mark[2]) for mark in marks if mark is not None and len(mark) > 2}
    named = [path for path in paths if path.name == name and path.parent != directory]
    return [file for path in named for file in (path, path.with_suffix(FRESH_SUFFIX)) if file.exists()]


def _number(text: str) -> int:
    try:
        return int(text, 16) % 2**64
    except ValueError:
        return 0


def _lines(path: Path) -> list[str] | None:
    try:
        return path.read_bytes().decode("utf-8", "replace").splitlines() or [""]
    except FileNotFoundError:
        return None
