"""A process that imports the proxy once, and forks a proxy for each order, so that a start costs no imports.

Each line of its input is one order, as JSON. It answers each order with a number: the process id of the new
proxy, or the exit status of a proxy that ended. Each proxy is the real ``serve`` in a process of its own,
which can be killed like any other process.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from shadeproxy.app.serve import serve
from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError, ShadeProxyError
from shadeproxy_bench.reliability.crash import hooks
from shadeproxy_bench.reliability.crash.board import Board
from shadeproxy_bench.reliability.crash.objects import PAGE_BYTES
from shadeproxy_bench.reliability.kit.parts import shorten_parts


def _live(order: dict[str, Any]) -> int:
    """Run a proxy, and return its exit status. An error is printed as the command line prints it."""
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(log, 1)
    os.setpgid(0, 0)
    if order["small"]:
        hooks.small_segments()
    shorten_parts(PAGE_BYTES)
    hooks.tie(Board(Path(order["board"])), order["seed"])
    try:
        serve(Settings.load(Path(order["config"]) if order["config"] else None, order["settings"]))
    except ShadeProxyError as error:
        os.write(2, f"error: {error}\n".encode())
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _fork(order: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        status = _live(order)
    except BaseException:  # noqa: BLE001 - the child must not return into the loop of this process
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            answer = _fork(order)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
