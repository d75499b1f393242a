"""The media of the rounds: a directory in which calls fail on request, or an ext4 image on a loop device."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shadeproxy_bench.faults import BenchError

_IMAGE_BYTES = 96 * 1024 * 1024


class Medium(Protocol):
    """The medium of the disk tier. ``root``: the directory of the tier and of the proxy's state. ``breaks``:
    the names of the ways in which the medium can fail.
    """

    root: Path
    breaks: Sequence[str]

    def settle(self) -> None:
        """Flush all changes to the device, so that a copy of the device has them."""
        ...

    def break_(self, how: str) -> None:
        """Make the medium fail from now on, in the way ``how``: each call that changes a file or directory on
        it fails.
        """
        ...

    def heal(self) -> bool:
        """End the failure while the proxy runs. Return False if this medium cannot do that."""
        ...

    def keep_image(self) -> bool:
        """Copy the device's present contents, which ``repair`` will restore. Return False if this medium
        cannot do that.
        """
        ...

    def repair(self) -> None:
        """Make the medium usable again. No process may use it meanwhile."""
        ...

    def close(self) -> None: ...


class FailingDirectory:
    """A directory in which calls fail. A file names the error; the hooks in the proxy (``proxy.py``) read
    that file and raise the error.
    """

    breaks: Sequence[str] = ("EIO", "EROFS", "ENOSPC")

    def __init__(self, work: Path) -> None:
        self.root = work / "medium"
        self.root.mkdir()
        self._told = work / "failing"

    def settle(self) -> None:
        """Do nothing: this medium keeps no changes in a cache of its own."""

    def break_(self, how: str) -> None:
        self._told.write_text(how)

    def heal(self) -> bool:
        self._told.write_text("")
        return True

    def keep_image(self) -> bool:
        return False

    def repair(self) -> None:
        self.heal()

    def close(self) -> None:
        self.repair()


class LoopMounted:
    """ext4 with errors=remount-ro on a loop device. Mounting it needs root."""

    breaks: Sequence[str] = ("ext4 error",)

    def __init__(self, work: Path) -> None:
        self.root = work / "mounted"
        self.root.mkdir()
        self._image, self._kept = work / "image", work / "kept"
        with self._image.open("wb") as file:
            file.truncate(_IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    def settle(self) -> None:
        _run("sync", "-f", str(self.root))

    def break_(self, how: str) -> None:
        del how
        device = _run("findmnt", "-n", "-o", "SOURCE", str(self.root)).strip().rpartition("/")[2]
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")

    def heal(self) -> bool:
        return False

    def keep_image(self) -> bool:
        _run("cp", "--sparse=always", str(self._image), str(self._kept))
        return True

    def repair(self) -> None:
        self._unmount()
        if self._kept.exists():
            self._kept.rename(self._image)
        # Status 1 of fsck means that errors were corrected.
        _run("fsck.ext4", "-fy", str(self._image), statuses=(0, 1))
        self._mount()

    def close(self) -> None:
        self._unmount()
        for path in (self._image, self._kept):
            path.unlink(missing_ok=True)

    def _mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.root))

    def _unmount(self) -> None:
        _run("umount", str(self.root))


def loop_mounts_work(work: Path) -> bool:
    """Return whether this machine allows us to mount an ext4 image on a loop device."""
    work.mkdir()
    try:
        LoopMounted(work).close()
    except (BenchError, OSError):
        return False
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return True


def _run(*command: str, statuses: Sequence[int] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in statuses:
        raise BenchError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
