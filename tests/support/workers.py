"""Helpers to observe the workers of a proxy."""

from contextlib import suppress
from pathlib import Path

from tests.support.served import wait_for


def worker_pids(served) -> list[int]:
    """Return the process ids of the processes that the proxy started."""
    pid = served.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def listens(pid: int, port: int) -> bool:
    """Return whether a worker waits for connections."""
    process, inodes = Path(f"/proc/{pid}"), listening(port)
    with suppress(OSError):
        # Until the worker runs its own program it has the descriptors of its coordinator, which listens too.
        if b"shadeproxy.app.worker" not in (process / "cmdline").read_bytes():
            return False
        targets = {link.name: str(link.readlink()) for link in (process / "fd").iterdir()}
        polls = [name for name, target in targets.items() if "eventpoll" in target]
        watched = [line for name in polls for line in (process / "fdinfo" / name).read_text().splitlines()]
        return any(targets.get(line.split()[1]) in inodes for line in watched if line.startswith("tfd:"))
    return False


def listening(port: int) -> set[str]:
    """Return the link targets of descriptors of sockets that listen at ``port``."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = (line for line in sockets if line[1].endswith(f":{port:04X}") and line[3] == "0A")
    return {f"socket:[{line[9]}]" for line in found}


def wait_for_workers(served) -> list[int]:
    """Wait until every worker accepts connections; return their process ids."""
    count = int(next(word for word in served.arguments if word.startswith("s3.workers=")).partition("=")[2])
    port = int(served.s3.rpartition(":")[2])
    wait_for(lambda: sum(listens(pid, port) for pid in worker_pids(served)) == count - 1, limit_s=60.0)
    return worker_pids(served)
