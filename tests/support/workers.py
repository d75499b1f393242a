"""Helpers to observe the worker processes of a proxy."""

from pathlib import Path

from shadeproxy_bench.reliability.kit.workers import listens
from tests.support.served import wait_for


def worker_pids(served) -> list[int]:
    """Return the process ids of all processes that the proxy has started."""
    pid = served.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def wait_for_workers(served) -> list[int]:
    """Wait until every worker accepts connections. Return the workers' process ids."""
    count = int(next(word for word in served.arguments if word.startswith("s3.workers=")).partition("=")[2])
    port = int(served.s3.rpartition(":")[2])
    wait_for(lambda: sum(listens(pid, port) for pid in worker_pids(served)) == count - 1, limit_s=60.0)
    return worker_pids(served)
