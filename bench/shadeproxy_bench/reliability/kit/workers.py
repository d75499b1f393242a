"""The workers of a proxy, seen from outside: whether a process accepts connections, and which connections it
has.
"""

from contextlib import suppress
from pathlib import Path

_TCP = Path("/proc/net/tcp")
_ESTABLISHED, _LISTENS = "01", "0A"


def listens(pid: int, port: int) -> bool:
    """Return whether the process is a worker that waits for connections at ``port``."""
    process = Path(f"/proc/{pid}")
    inodes = {inode for inode, own, _ in _sockets(_LISTENS) if own == port}
    with suppress(OSError):
        # Until a new worker runs its own program, it still has the coordinator's descriptors, among them a
        # listening socket.
        if b"shadeproxy.app.worker" not in (process / "cmdline").read_bytes():
            return False
        targets = {link.name: str(link.readlink()) for link in (process / "fd").iterdir()}
        polls = [name for name, target in targets.items() if "eventpoll" in target]
        watched = [line for name in polls for line in (process / "fdinfo" / name).read_text().splitlines()]
        return any(targets.get(line.split()[1]) in inodes for line in watched if line.startswith("tfd:"))
    return False


def clients_of(pid: int, port: int) -> set[int]:
    """Return the ports of the clients whose connections to ``port`` the process has accepted."""
    held = _held_by(pid)
    return {other for inode, own, other in _sockets(_ESTABLISHED) if own == port and inode in held}


def held_clients(port: int) -> set[int]:
    """Return the ports of the clients whose connections to ``port`` a process still has open."""
    # Filter the lines first, because there may be thousands of other connections.
    mark = f":{port:04X} "
    lines = [line.split() for line in _TCP.read_text().splitlines() if mark in line]
    return {
        int(line[2].rpartition(":")[2], 16)
        for line in lines
        if line[1].endswith(mark.strip()) and line[3] != _LISTENS and line[9] != "0"
    }


def ports_to(pid: int, port: int) -> set[int]:
    """Return the local ports of the connections that the process has made to ``port``."""
    held = _held_by(pid)
    return {own for inode, own, other in _sockets(_ESTABLISHED) if other == port and inode in held}


def _held_by(pid: int) -> set[str]:
    held = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            held.add(str(link.readlink()))
    return held


def _sockets(state: str) -> list[tuple[str, int, int]]:
    """Return all TCP sockets in a state. For each socket there are three values: the text to which a
    descriptor's link points, the socket's own port, and the port at the other end.
    """
    lines = [line.split() for line in _TCP.read_text().splitlines()[1:]]
    return [
        (f"socket:[{line[9]}]", int(line[1].rpartition(":")[2], 16), int(line[2].rpartition(":")[2], 16))
        for line in lines
        if line[3] == state
    ]
