"""The Unix socket of the control listener. Only the user of the proxy may open it. The proxy removes it at a
stop.

Laws: other users can never open the socket, not even for a moment. A start replaces the socket of a dead
process. A start fails if a living process listens on the socket. No file but a socket is ever removed.
"""

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import structlog

from shadeproxy.config import Settings
from shadeproxy.config.sections import MOST_SOCKET_PATH_BYTES, NO_SOCKET
from shadeproxy.core.errors import ConfigError

_log = structlog.get_logger(__name__)
DEFAULT_NAME = "control.sock"


class ControlSocket:
    """A socket bound to ``path``, not listening yet."""

    def __init__(self, path: Path) -> None:
        """Bind the socket. Raises ConfigError."""
        self.path = path.absolute()
        _make_way(self.path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The umask applies to the whole process. If another thread makes a file at this moment, that file is
        # private too, which does no harm.
        mask = os.umask(0o177)
        try:
            self.socket.bind(str(self.path))
            self._identity = _identity(self.path)
        except OSError as error:
            self.socket.close()
            raise ConfigError(
                f"control.socket: cannot listen on {self.path}: {error.strerror or error}; name a path"
                f' in a directory that user id {os.geteuid()} can write, or write "{NO_SOCKET}"'
            ) from error
        finally:
            os.umask(mask)

    def remove(self) -> None:
        """Delete the socket's file, unless another process has replaced it. The listener closes the socket
        itself.
        """
        with suppress(OSError):
            if _identity(self.path) == self._identity:
                self.path.unlink()


def open_control_socket(settings: Settings) -> ControlSocket | None:
    """Open the socket that the settings name; return None if they want none. Raises ConfigError."""
    wanted = settings.control.socket
    if wanted == NO_SOCKET:
        return None
    if wanted:
        return ControlSocket(Path(wanted).expanduser())
    path = (settings.state.path / DEFAULT_NAME).absolute()
    if len(os.fsencode(path)) > MOST_SOCKET_PATH_BYTES:
        _log.warning(
            "no control socket",
            reason=f"{path} is longer than {MOST_SOCKET_PATH_BYTES} bytes",
            hint="set control.socket to a shorter path",
        )
        return None
    return ControlSocket(path)


def _make_way(path: Path) -> None:
    """Remove the socket that a dead process left at ``path``. Raises ConfigError if anything else is
    there.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"control.socket: {path} is there and is no socket; name another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # Do not block. If a living listener has a full queue, connecting then fails with EAGAIN at once.
            probe.setblocking(False)
            answer = probe.connect_ex(str(path))
        if answer == errno.ECONNREFUSED:
            path.unlink()
            return
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(
            f"control.socket: cannot use {path}: {error.strerror}; name another path"
        ) from error
    if answer in {0, errno.EAGAIN}:
        raise ConfigError(f"control.socket: another process listens on {path}; stop it or name another path")
    raise ConfigError(f"control.socket: cannot use {path}: {os.strerror(answer)}; name another path")


def _identity(path: Path) -> tuple[int, int, int]:
    """Return device, inode and time of change of the file at ``path``. Device and inode do not suffice: the
    inode number of a deleted file is soon used again.
    """
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_mtime_ns
