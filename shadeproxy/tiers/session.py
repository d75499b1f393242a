"""A use of a tier's directory by one process: how it began, and whether what is in it may be believed.

The mark ``boot`` in the directory is there while it is in use, and stays when the use did not end in order:
the id of the boot of the machine, a number of the use, and where its tombstones lie. A start that finds a
mark of this boot asks the tombstones; one that finds another boot's, or whose tombstones are lost or belong
to another use, puts every record in doubt: it is checked with the origin before it is used. The doubt ends
with an orderly end by which every record was checked, where the machine has started since: before that the
page cache may hide what is on the medium, so that nobody can check it. After an orderly end the mark is
``stopped``, and tombstones that know of a later use tell a medium that was put back.
"""

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

from xxhash import xxh3_64_intdigest

from shadeproxy.core.errors import TierError
from shadeproxy.tiers import disowned
from shadeproxy.tiers.tombstones import FRESH_SUFFIX, SUFFIX, Tombstones

_logger = logging.getLogger(__name__)

BOOT_NAME = "boot"
"""There while the directory is in use."""
STOPPED_NAME = "stopped"
"""What the mark is renamed to when the use ended in order."""


class Session:
    """One use of ``directory``, in the ``boot`` of this id; ``place``: the directory of the tombstones.

    ``lost_lists`` counts tombstones that were lost or damaged.
    """

    def __init__(self, directory: Path, *, boot: str, place: Path, store_id: int) -> None:
        self.directory = directory
        self._boot = boot
        self._cut_off = False  # whether the last use was ended by the machine
        self._before: Path | None = None  # where the tombstones of the last use lie, as its mark says
        self.lost_lists = 0
        self.tombstones = Tombstones(place / f"{store_id:016x}{SUFFIX}")

    @property
    def unflushed(self) -> bool:
        """Return whether every record is in doubt."""
        return self.tombstones.epoch != 0

    @property
    def epoch(self) -> int:
        """A number for the boot, and the time in it since when no record was put in doubt."""
        return xxh3_64_intdigest(f"{self._boot}{self.tombstones.epoch or ''}".encode())

    # ------------------------------------------------------------------ begin

    def begin(self) -> None:
        """Look at what the last use left and begin another. Raises OSError."""
        in_doubt = self._look() | self._take_over_list()
        number = secrets.randbits(63) + 1
        try:
            self._begin_list(number, in_doubt=in_doubt)
            mark = f"{self._boot.strip()}\n{number:016x}\n{self.tombstones.path}\n"
            _write_mark(self.directory / BOOT_NAME, mark)
            self.tombstones.begun()
        except BaseException:
            self.tombstones.close()
            raise
        (self.directory / disowned.NAME).unlink(missing_ok=True)
        if self._before is not None and self._before != self.tombstones.path:
            # Or else it would pass for that of a later use when its directory is chosen again.
            with suppress(OSError):
                self._before.unlink()

    def _begin_list(self, number: int, *, in_doubt: bool) -> None:
        """Begin the tombstones of the use ``number``: beside the cache where their place takes none."""
        try:
            self._open_list(number, in_doubt=in_doubt)
        except OSError as error:
            place, name = self.tombstones.path.parent, self.tombstones.path.name
            if place == self.directory:
                raise
            _logger.warning(
                "the list of overwritten objects cannot be kept in %s (%s): it is kept in %s, where each name"
                " waits for the disk; make room there and restart",
                place,
                error.strerror,
                self.directory,
            )
            self.tombstones = self.tombstones.elsewhere(self.directory / name)
            self._open_list(number, in_doubt=in_doubt)

    def _open_list(self, number: int, *, in_doubt: bool) -> None:
        self.tombstones.open()
        if in_doubt or self._cut_off:
            self.tombstones.doubt_all(ends=self._cut_off)
        self.tombstones.begin(number)

    def _look(self) -> bool:
        """Return whether records may have come back that no tombstone names."""
        mark = _lines(self.directory / BOOT_NAME)
        if mark is None:
            return not self._is_where_it_stopped()
        self._cut_off = mark[0] != self._boot.strip()
        if len(mark) == 1:
            # Of an earlier release, which had no tombstones.
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
        # A start that is killed before its mark is written must not look like one of a later use.
        self.tombstones.session = _number(number)
        return True

    def _list_of(self, mark: list[str]) -> Path | None:
        """Return the path of the tombstones that this mark names; None unless they are of this cache."""
        path = Path(mark[2] if len(mark) > 2 else "")
        return path if path.name == self.tombstones.path.name else None

    def _take_over(self, number: str) -> bool:
        """Take over the last use's tombstones and return True, if they are those of the use ``number``."""
        theirs = Tombstones(self._before or Path())
        known = self._read(theirs) and number in {f"{one:016x}" for one in (theirs.session, theirs.coming)}
        if known:
            self.tombstones.found, self.tombstones.epoch = theirs.found, theirs.epoch
            self.tombstones.session = _number(number)
        elif not self._cut_off:
            _logger.warning(
                "%s: the list of overwritten objects is lost: every page is checked", self.directory
            )
            self.lost_lists += 1
        return bool(known)

    def _take_over_list(self) -> bool:
        """Take over the list of an earlier release; return whether it is damaged."""
        try:
            self.tombstones.found |= disowned.read_list(self.directory)
        except TierError as error:
            _logger.warning("%s: the list of overwritten objects is lost: %s", self.directory, error)
            self.lost_lists += 1
            return True
        return False

    def _read(self, tombstones: Tombstones) -> bool | None:
        """Read them and return whether there were any; None when they are damaged."""
        try:
            return tombstones.read()
        except (TierError, OSError, ValueError) as error:
            _logger.warning("the list of overwritten objects of %s: %s", self.directory, error)
            return None

    # ------------------------------------------------------------------ end

    def end(self, *, clean: bool, checked: bool = False) -> None:
        """``clean``: everything that was erased is known to be on the medium. ``checked``: so is every record
        to be what the origin had since this use began. Raises OSError.

        Else a doubt stays: a page that nobody has read since is as doubtful as before.
        """
        try:
            if clean and checked and self.unflushed and self.tombstones.doubt_ends:
                self.tombstones.trust_all()
            if clean and self.tombstones.at_rest:
                (self.directory / BOOT_NAME).rename(self.directory / STOPPED_NAME)
        finally:
            self.tombstones.close()


def lists_of(directory: Path, store_id: int) -> list[Path]:
    """Tombstones of the cache in ``directory``, finished or not, that lie elsewhere. Raises OSError."""
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


def _write_mark(mark: Path, text: str) -> None:
    fresh = mark.with_name(f"{BOOT_NAME}.new")
    fresh.touch(mode=0o600)
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        # On the medium before anything changes: else a change could outlive its mark.
        os.fsync(file.fileno())
    # As a whole: a kill between making the file and writing it would leave a mark of no boot.
    fresh.rename(mark)
    _sync_directory(mark.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
