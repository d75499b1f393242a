"""Damages files of a proxy that is not running, as a bad medium or a mistaken user would."""

import os
import stat
from pathlib import Path
from random import Random

KINDS = (
    "a bit flipped",
    "bytes overwritten",
    "a block zeroed",
    "cut off",
    "emptied",
    "junk appended",
    "deleted",
)
_WEIGHTS = (8, 3, 3, 4, 1, 1, 2)
_BLOCK_BYTES = 4096


def kind_of(path: Path) -> str:
    """Return the kind of a file: segment, catalogue, or database with its suffix. For any other file, return
    its name.
    """
    if path.name.startswith("cache.db"):
        return f"database{path.name.removeprefix('cache.db')}"
    return {".seg": "segment", ".cat": "catalogue"}.get(path.suffix, path.name)


def victims(directories: list[Path]) -> list[Path]:
    """Return the regular files in ``directories``, sorted. Only these can be damaged."""
    return sorted(
        path
        for directory in directories
        if directory.is_dir()
        for path in directory.iterdir()
        if stat.S_ISREG(path.lstat().st_mode)
    )


def choose(paths: list[Path], rng: Random) -> Path:
    """Draw a kind of file, and then a file of that kind. If files were drawn directly, the one database would
    seldom be chosen among so many segments.
    """
    kind = rng.choice(sorted({kind_of(path) for path in paths}))
    return rng.choice([path for path in paths if kind_of(path) == kind])


def spoil(path: Path, rng: Random) -> str:
    """Damage one file, and return the kind of damage."""
    kind = rng.choices(KINDS, _WEIGHTS)[0]
    size = path.stat().st_size
    if kind == "deleted":
        path.unlink()
        return kind
    with path.open("r+b") as file:
        if kind == "junk appended":
            file.seek(size)
            file.write(rng.randbytes(rng.randrange(1, 9000)))
        elif kind == "emptied" or size == 0:
            file.truncate(0)
        elif kind == "cut off":
            file.truncate(rng.randrange(size))
        else:
            place = _place(file.fileno(), size, rng)
            file.seek(place)
            new = _instead(kind, file.read(1)[0], size - place, rng)
            file.seek(place)
            file.write(new)
    return kind


def _instead(kind: str, old: int, left: int, rng: Random) -> bytes:
    if kind == "a bit flipped":
        return bytes([old ^ 1 << rng.randrange(8)])
    if kind == "bytes overwritten":
        return rng.randbytes(min(left, rng.randrange(1, 200)))
    return bytes(min(left, _BLOCK_BYTES))


def _place(descriptor: int, size: int, rng: Random) -> int:
    """Draw a place in a file, but not in a hole: most of a segment is holes, and damage there has no effect.
    The place is often near the start of a record or of the file.
    """
    place = rng.randrange(size)
    try:
        place = max(place, os.lseek(descriptor, place, os.SEEK_DATA))
    except OSError:
        place = rng.randrange(min(size, _BLOCK_BYTES))
    return place // 64 * 64 + rng.randrange(64) if rng.random() < 0.3 and place + 64 < size else place
