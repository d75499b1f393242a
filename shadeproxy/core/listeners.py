"""The processes of this machine that listen at a port, as far as this user may see (/proc, proc(5))."""

from contextlib import suppress
from pathlib import Path

_PROCESSES = Path("/proc")
_TABLES = ("tcp", "tcp6")
_LISTENING = "0A"


def listens(pid: int, port: int) -> bool:
    """Return whether process ``pid`` has a TCP socket that listens at ``port``, whatever the address."""
    process = _PROCESSES / str(pid)
    try:
        sockets = _listening(process, port)
        return any(_target(file) in sockets for file in (process / "fd").iterdir())
    except OSError:
        return False


def _listening(process: Path, port: int) -> set[str]:
    found = set()
    for table in _TABLES:
        with suppress(OSError):  # no IPv6 here
            for line in (process / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def _target(file: Path) -> str:
    with suppress(OSError):  # closed meanwhile
        return str(file.readlink())
    return ""
