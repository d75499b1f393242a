"""Tombstones: objects whose records in a tier must be ignored. Their file survives a broken medium.

An erased record may come back: the medium refuses the erasure, or loses it by turning read-only before the
page cache was written. So a write to an object is acknowledged only after the object's name is in this file.
The name is removed only when the erasure is known to be on the medium. If there is a tmpfs, the file lies on
it, where a failing disk cannot harm it. On any other medium each name is flushed as soon as it is written.

Laws: ``add`` and ``doubt_all`` return only when the name or the doubt is safe in the file, or raise. The file
has two halves: new names go to one half while the names of the other half wait for their erasures (``turn``,
``forget``). If a half is full or a name cannot be written, the whole tier is put in doubt instead. One word
in the file's head marks the doubt, so a doubt can be written even to a full medium. Hashes detect all damage.
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
"""Suffix of the file's name until the file is complete."""
_MAGIC = b"ShTs\x01\x00\x00\x00"
_HEAD = struct.Struct("<8sQQQQ")  # The fields: magic; session, coming session, epoch of the doubt; hash.
_HASHED = struct.Struct("<8sQQQ")
_SLOT = struct.Struct("<QQ")  # The fields: hash of the object; hash over that hash and its position.
_BLOCK_BYTES = 4096
_SLOTS = 32 * 1024
"""Slots of each half. The first block of each half is allocated with the file, so that a full tmpfs has
room.
"""


class Tombstones:
    """The tombstone file at ``path``. ``session``: the session that the file belongs to. ``epoch``: a number
    that changes whenever every record is put in doubt, and 0 while there is no doubt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.session = self.coming = self.epoch = 0
        self.found: set[int] = set()
        """Objects that an earlier process named. The first ``forget`` clears this set."""
        self.on_tmpfs = False
        self._descriptor = -1
        self._half = 0
        self._names: tuple[set[int], set[int]] = (set(), set())
        self._places = [0, 0]
        self._forgotten = [0, 0]  # How often each half was cleared.
        self.doubted = False
        """True if every record was put in doubt in this session. No further names are needed then."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._names[0]) + len(self._names[1])

    @property
    def doubt_ends(self) -> bool:
        """True if the doubt can end by checking every record with the origin."""
        return self.epoch % 2 == 0

    @property
    def crowded(self) -> bool:
        """True if half of the slots for new names is taken."""
        return 2 * self._places[self._half] > _SLOTS

    @property
    def at_rest(self) -> bool:
        """True if the file holds neither a name nor a doubt."""
        return not len(self) and not self.epoch

    # ------------------------------------------------------------------ reading, opening and closing the file

    def read(self) -> bool:
        """Read the file. Return False if there is no file. Raises OSError, and TierError for a damaged
        file.
        """
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
        """Replace the file by a new one with the names that ``read`` found. Raises OSError."""
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
        """Close this file. Return tombstones with the same names for a file at ``path``. That file is not
        open yet.
        """
        self.close()
        other = Tombstones(path)
        other.session, other.epoch, other.found = self.session, self.epoch, self.found
        return other

    def begin(self, session: int) -> None:
        """Record that the session mark of ``session`` is about to be written. Raises OSError."""
        self.coming = session
        self._write_head()

    def begun(self) -> None:
        """Record that the session mark of the coming session is on the medium. Raises OSError."""
        self.session, self.coming = self.coming, 0
        self._write_head()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # ------------------------------------------------------------------ names

    def add(self, object_hash: int) -> None:
        """Add the name of an object. Raises OSError; the caller must then not acknowledge the write."""
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
        """Put every record in doubt: it must be checked with the origin before it is used. Raises OSError.

        ``ends``: the doubt can end by checking every record, because reads show what is really on the medium.
        """
        with self._lock:
            self._doubt(ends=ends)

    def trust_all(self) -> None:
        """End the doubt. Call this only when every record was checked and every erasure is on the medium.
        Raises OSError.
        """
        with self._lock:
            before, self.epoch = self.epoch, 0
            try:
                self._write_head()
            except OSError:
                self.epoch = before
                raise

    def _doubt(self, *, ends: bool = False) -> None:
        # Each doubt gets a new number, so that everything written under the old number becomes invalid.
        before, self.epoch = self.epoch, (secrets.randbits(62) + 1) * 2 + (not ends)
        try:
            self._write_head()
        except OSError:
            self.epoch = before
            raise
        self.doubted = True

    def turn(self) -> int:
        """Write new names into the other half of the file from now on, if that half is empty. Return a token
        for the half that then gets no new names. When every record dropped so far is erased, pass the token
        to ``forget``, once.
        """
        with self._lock:
            if not self._places[1 - self._half]:
                self._half = 1 - self._half
            return self._forgotten[1 - self._half] * 2 + 1 - self._half

    def forget(self, turned: int) -> None:
        """Clear the half that ``turned`` names. The records of all its objects must be erased for good.
        Raises OSError.
        """
        times, half = divmod(turned, 2)
        with self._lock:
            if times != self._forgotten[half]:
                return  # This half was cleared after ``turned`` was made, so its names are newer.
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
