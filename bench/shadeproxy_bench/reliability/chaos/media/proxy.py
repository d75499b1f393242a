"""``shadeproxy serve`` with a disk tier that fails on request.

While the file ``--failing`` holds the name of an error, every call that changes the tier's directory fails
with that error. If the error is ENOSPC, removing and truncating files still work.
"""

import argparse
import errno
import os
import sys
from pathlib import Path

from shadeproxy.app.serve import serve
from shadeproxy.config import Settings
from shadeproxy.tiers import directory
from shadeproxy.tiers.medium import SYSTEM
from shadeproxy.tiers.tombstones import Tombstones
from shadeproxy_bench.reliability.kit.parts import shorten_parts

_CHANGES = frozenset({"os.rename", "os.remove", "os.truncate", "os.mkdir", "os.link"})
_STILL_DONE_WHEN_FULL = frozenset({"os.remove", "os.truncate"})
_LONG_BYTES = 64 * 1024
"""The limits for parts are set as for pages of this length, because the objects are no longer than two."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class FailingMedium:
    """The system calls of a tier (``Calls``). They refuse every change of a segment while the file
    ``failing`` names an error. The audit hook refuses all other changes below ``root``.
    """

    def __init__(self, root: Path, failing: Path) -> None:
        self._root, self._failing = str(root), failing

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        return SYSTEM.pread(descriptor, length, offset)

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        self._suffer()
        return SYSTEM.pwrite(descriptor, data, offset)

    def punch_hole(self, descriptor: int, start: int, length: int) -> None:
        self._suffer()
        SYSTEM.punch_hole(descriptor, start, length)

    def flush(self, descriptor: int) -> None:
        self._suffer()
        SYSTEM.flush(descriptor)

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Refuse a change of a file or directory below the root. Add this method to the interpreter by
        ``sys.addaudithook``.
        """
        if event in _CHANGES or (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
        ):
            path = arguments[0]
            if isinstance(path, int):
                path = str(Path(f"/proc/self/fd/{path}").readlink())
            if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self._root):
                self._suffer(event)

    def _suffer(self, event: str = "write") -> None:
        name = self._failing.read_text()
        if name and not (name == "ENOSPC" and event in _STILL_DONE_WHEN_FULL):
            number = getattr(errno, name)
            raise OSError(number, os.strerror(number))


def _plant() -> None:
    """Plant a defect: when the proxy is about to change objects, it then records neither tombstones nor
    doubt. The rounds must fail.
    """
    Tombstones.add = lambda *_: None  # type: ignore[method-assign]
    Tombstones.doubt_all = lambda *_, **__: None  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description="The proxy of rounds with failing media.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--failing", type=Path, required=True, help="file with the name of the error")
    parser.add_argument("--boot", type=Path, required=True, help="file with the id of the boot")
    parser.add_argument("--planted", action="store_true", help="without the marks: rounds must then fail")
    options = parser.parse_args()
    settings = Settings.load(options.config)
    shorten_parts(_LONG_BYTES)
    medium = FailingMedium(settings.cache.disk.path, options.failing)
    sys.addaudithook(medium.audit)
    directory._BOOT_ID = options.boot  # noqa: SLF001 (a new boot id in this file simulates a reboot)
    if options.planted:
        _plant()
    serve(settings, calls={"disk": medium})


if __name__ == "__main__":
    main()
