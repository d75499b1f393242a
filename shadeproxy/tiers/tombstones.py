"""Tombstones: the objects of which no record of a tier counts any more, in a file that survives its medium.

A record that was erased may come back: the medium refuses the erasure, or forgets it when it turns read-only
before the page cache was written. So the name of an object is here before its writer hears of success, and
goes only when the erasure is known to be on the medium. The file lies on tmpfs where there is one, which no
failing disk touches; elsewhere each name is synced.

Laws: ``add`` and ``doubt_all`` answer when the mark lies safely, or raise. Names are added to one half of the
file while those of the other wait for their erasures (``turn``, ``forget``). A half that is full, and a name
that cannot be written, put the whole tier in doubt instead: one word in the head, which needs no room.
A damaged file is told from a whole one by its hashes, whatever the byte.
"""

import os
import secrets
import struct
import threading
from pathlib import Path

from xxhash import xxh3_64_intdigest

from shadeproxy.core.errors import TierError
from shadeproxy.tiers.medium import is_tmpfs

SUFFIX = ".tombstones"
FRESH_SUFFIX = ".new"
"""While it is made."""
_MAGIC = b"ShTs\x01\x00\x00\x00"
_HEAD = struct.Struct("<8sQQQQ")  # magic; session, the one that is beginning, epoch of the doubt; hash
_HASHED = struct.Struct("<8sQQQ")
_SLOT = struct.Struct("<QQ")  # hash of the object, hash of that and of the place
_BLOCK_BYTES = 4096
_SLOTS = 32 * 1024
"""Of each half. Their first blocks are allocated when the file is made, so that a full tmpfs has room."""


class Tombstones:
    """The file at ``path``. ``session``: the use of the tier that it belongs to; ``epoch``: 0, or a number
    that stands for the last time that every record was put in doubt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.session = self.coming = self.epoch = 0
        self.found: set[int] = set()
        """Names that an earlier process left: they stay until ``forget`` after the first ``turn``."""
        self.on_tmpfs = False
        self._descriptor = -1
        self._half = 0
        self._names: tuple[set[int], set[int]] = (set(), set())
        self._places = [0, 0]
        self._forgotten = [0, 0]  # how often each half was
        self.doubted = False
        """Whether every record was put in doubt in this use: names tell nothing more then."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._names[0]) + len(self._names[1])

    @property
    def doubt_ends(self) -> bool:
        """Return whether doubted records may be trusted once they were checked."""
        return self.epoch % 2 == 0

    @property
    def crowded(self) -> bool:
        """Return whether half of the room for names is taken."""
        return 2 * self._places[self._half] > _SLOTS

    @property
    def at_rest(self) -> bool:
        """Return whether there is nothing to remember."""
        return not len(self) and not self.epoch

    # ------------------------------------------------------------------ life

    def read(self) -> bool:
        """Take over the file; False when there is none. Raises OSError, TierError of a damaged file."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return False
        if len(raw) < _HEAD.size or raw[: _HEAD.size] != _head(*_HEAD.unpack_from(raw)[1:4]):
            raise TierError("its head is damaged")
        self.session, self.coming, self.epoch = _HEAD.unpack_from(raw)[1:4]
        for half in (0, 1):
            self._read_half(half, raw[_start(half) : _start(half) + _SLOTS * _SLOT.size].rstrip(b"\0"))
        return True

    def _read_half(self, half: int, raw: bytes) -> None:
        for place in range(-(-len(raw) // _SLOT.size)):
            slot = raw[place * _SLOT.size : (place + 1) * _SLOT.size].ljust(_SLOT.size, b"\0")
            (found,) = struct.unpack_from("<Q", slot)
            if slot != _slot(half, place, found):
                raise TierError("a name in it is damaged or missing")
            self.found.add(found)

    def open(self) -> None:
        """Replace the file by a fresh one with the names that were found. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.path.with_suffix(FRESH_SUFFIX)
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self.on_tmpfs = is_tmpfs(self.path.parent)
            os.pwrite(descriptor, _head(self.session, self.coming, self.epoch).ljust(_BLOCK_BYTES, b"\0"), 0)
            for half in (0, 1):
                os.pwrite(descriptor, bytes(_BLOCK_BYTES), _start(half))
            self._descriptor = descriptor
            self._keep()
            for name in self.found:
                self.add(name)
            fresh.rename(self.path)
        except BaseException:
            os.close(descriptor)
            self._descriptor = -1
            fresh.unlink(missing_ok=True)
            raise

    def elsewhere(self, path: Path) -> "Tombstones":
        """The same names, not opened yet, for a file at ``path``; this one is closed."""
        self.close()
        other = Tombstones(path)
        other.session, other.epoch, other.found = self.session, self.epoch, self.found
        return other

    def begin(self, session: int) -> None:
        """A use of the tier begins: its mark is about to be written. Raises OSError."""
        self.coming = session
        self._write_head()

    def begun(self) -> None:
        """The mark of the use that is beginning is on the medium. Raises OSError."""
        self.session, self.coming = self.coming, 0
        self._write_head()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # ------------------------------------------------------------------ names

    def add(self, object_hash: int) -> None:
        """Remember an object. Raises OSError: then nobody may be answered as if it were remembered."""
        with self._lock:
            half = self._half
            names, place = self._names[half], self._places[half]
            if object_hash in names or self.doubted:
                return
            if place == _SLOTS:
                self._doubt()
                return
            try:
                os.pwrite(
                    self._descriptor, _slot(half, place, object_hash), _start(half) + place * _SLOT.size
                )
                self._keep()
            except OSError:
                self._doubt()
                return
            self._places[half] = place + 1
            names.add(object_hash)

    def doubt_all(self, *, ends: bool = False) -> None:
        """From now on every record is to be checked with the origin before it is used. Raises OSError.

        ``ends``: what is read of the medium is what is on it, so that there is an end to checking it.
        """
        with self._lock:
            self._doubt(ends=ends)

    def trust_all(self) -> None:
        """Every record was checked, and every erasure is on the medium. Raises OSError."""
        with self._lock:
            before, self.epoch = self.epoch, 0
            try:
                self._write_head()
            except OSError:
                self.epoch = before
                raise

    def _doubt(self, *, ends: bool = False) -> None:
        # Another number each time: what was written down before it counts for nothing.
        before, self.epoch = self.epoch, (secrets.randbits(62) + 1) * 2 + (not ends)
        try:
            self._write_head()
        except OSError:
            self.epoch = before
            raise
        self.doubted = True

    def turn(self) -> int:
        """Add to the other half from now on, if that is empty; what ``forget`` is to be given when everything
        that was dropped before is erased: the half, as it is until it is forgotten.
        """
        with self._lock:
            if not self._places[1 - self._half]:
                self._half = 1 - self._half
            return self._forgotten[1 - self._half] * 2 + 1 - self._half

    def forget(self, turned: int) -> None:
        """Every record of the names in the half of that ``turn`` is erased for good. Raises OSError."""
        times, half = divmod(turned, 2)
        with self._lock:
            if times != self._forgotten[half]:
                return  # it was forgotten since, and has names of later
            if self._places[half]:
                os.pwrite(self._descriptor, bytes(self._places[half] * _SLOT.size), _start(half))
                self._keep()
            self._places[half] = 0
            self._names[half].clear()
            self._forgotten[half] += 1
            self.found.clear()

    # ------------------------------------------------------------------ bytes

    def _write_head(self) -> None:
        os.pwrite(self._descriptor, _head(self.session, self.coming, self.epoch), 0)
        self._keep()

    def _keep(self) -> None:
        if not self.on_tmpfs:
            os.fdatasync(self._descriptor)


def _start(half: int) -> int:
    return _BLOCK_BYTES + half * _SLOTS * _SLOT.size


def _head(session: int, coming: int, epoch: int) -> bytes:
    start = _HASHED.pack(_MAGIC, session, coming, epoch)
    return start + xxh3_64_intdigest(start).to_bytes(8, "little")


def _slot(half: int, place: int, object_hash: int) -> bytes:
    return _SLOT.pack(object_hash, xxh3_64_intdigest(struct.pack("<QQQ", half, place, object_hash)))
