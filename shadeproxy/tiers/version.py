"""The version file of a tier's directory: its format, the id of its store, the size of its pages, and the
origin that it caches.

Law: reading the file changes nothing. A cache of another origin keeps its value for that origin, so a wrong
setting must not destroy it.
"""

import json
import re
import secrets
from pathlib import Path
from typing import NamedTuple, NoReturn

from shadeproxy.core.errors import ConfigError
from shadeproxy.tiers.record import FORMAT_VERSION

VERSION_NAME = "version.json"
INCOMPATIBLE = "incompatible"
OTHER_ORIGIN = "other-origin"
USUAL_PAGE_BYTES = 4 << 20
"""The default size of a page, which is also the size if the version file names none."""


class Version(NamedTuple):
    """Contents of a version file. ``store_id``: the id that the records carry, or None for another format.
    ``page_bytes``: the page size of the records. The records themselves do not name it.
    """

    store_id: int | None
    contents: str
    page_bytes: int = USUAL_PAGE_BYTES


def read_version(path: Path) -> Version | None:
    """Return the contents of a directory's version file; None when there is no file. Raises OSError."""
    try:
        version = json.loads((path / VERSION_NAME).read_bytes())
        store_id = int(version["store"], 16) if version["format"] == FORMAT_VERSION else None
        page_bytes = int(version.get("page_size", USUAL_PAGE_BYTES))
        return Version(store_id, str(version.get("contents", "")), page_bytes)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return Version(None, "")


def other_origin(path: Path, known: str, contents: str) -> tuple[str, str]:
    """Return two texts for a directory that caches another origin: what is wrong, and what to change."""
    known = known or "an unnamed origin"
    setting = "origin.path" if contents.startswith("file ") else "origin.endpoint"
    remedy = (
        f'correct {setting}; or, if both are one origin, set origin.name = "{known}"; or drop'
        " the cache (shadeproxy purge --all), choose another directory, or set"
        ' cache.on_other_origin = "set-aside" to keep it beside a new one'
    )
    return f"{path} is a cache of {known}, and the origin is now {contents}", remedy


def refuse_other_origin(path: Path, setting: str, known: str, contents: str) -> NoReturn:
    """Raise ConfigError for a directory that holds the cache of another origin."""
    cause, remedy = other_origin(path, known, contents)
    raise ConfigError(f"{setting}: {cause}; nothing was changed. {remedy[0].upper()}{remedy[1:]}")


def write_version(path: Path, contents: str, page_bytes: int) -> int:
    """Write the file for a new store and return the store's id. Raises OSError."""
    store_id = secrets.randbits(64)
    version = {"format": FORMAT_VERSION, "store": f"{store_id:016x}", "contents": contents}
    version |= {"page_size": page_bytes}
    fresh = path / f"{VERSION_NAME}.new"
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(version) + "\n")
    fresh.rename(path / VERSION_NAME)
    return store_id


def move_aside(path: Path, reason: str) -> Path:
    """Rename a directory to a free name that contains ``reason``. Return the new path. Raises OSError."""
    number = 1
    while (target := path.with_name(f"{path.name}.{reason}-{number}")).exists():
        number += 1
    path.rename(target)
    return target


def moved_aside(path: Path) -> list[Path]:
    """Return the directories that ``move_aside`` made from a tier's directory. They lie beside it. Raises
    OSError.
    """
    if not path.parent.is_dir():
        return []
    name = re.compile(rf"{re.escape(path.name)}\.({INCOMPATIBLE}|{OTHER_ORIGIN})-\d+")
    return sorted(found for found in path.parent.iterdir() if name.fullmatch(found.name))
