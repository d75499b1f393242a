"""The control groups (v1 and v2) of this process, and the mounts that show them.

Source: cgroups(7), the kernel's cgroup-v2 documentation, mountinfo in proc(5). A group's limit covers all
groups below it. So the limits of the process's own group and of all groups above it apply to the process.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """A line of mountinfo (proc(5)): the directory ``root`` of a file system of type ``kind`` is mounted at
    ``point``.
    """

    root: str
    point: str
    kind: str
    options: frozenset[str]


class Group(NamedTuple):
    """The directory of a control group. ``version``: 1 or 2; the names of the files depend on it."""

    directory: Path
    version: int


def control_groups(controller: str, proc: Path = Path("/proc")) -> Iterator[Group]:
    """Yield this process's groups for ``controller``, such as "cpu", and the groups above these. Groups that
    no mount shows are left out.

    Raises OSError, ValueError.
    """
    found = mounts(proc)
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in found:
            if mount.kind == ("cgroup" if controllers else "cgroup2") and (
                not controllers or controller in mount.options
            ):
                for directory in _upwards(mount, group):
                    yield Group(directory, 1 if controllers else 2)


def mounts(proc: Path = Path("/proc")) -> list[Mount]:
    """Return the mounts that this process sees. Raises OSError, ValueError."""
    found = []
    for line in (proc / "self" / "mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        _, _, _, root, point, *_ = fields.split(" ")
        kind, _, options = rest.split(" ", 2)
        found.append(Mount(_unescaped(root), _unescaped(point), kind, frozenset(options.split(","))))
    return found


def _upwards(mount: Mount, group: str) -> Iterator[Path]:
    """Yield the directory of a group, and of each group above it."""
    # In some containers the path of the group is not below the root of the mount. Then the mount point shows
    # the group itself.
    inside = Path("/")
    if Path("/", group).is_relative_to(mount.root):
        inside /= Path("/", group).relative_to(mount.root)
    for level in (inside, *inside.parents):
        yield Path(mount.point) / level.relative_to("/")


def _unescaped(path: str) -> str:
    """Decode a path in mountinfo, where space, tab, newline and backslash are written as octal numbers
    (proc(5)).
    """
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(octal, character)
    return path
