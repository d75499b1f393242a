"""``Home``: the directories and settings that proxies use one after another. It starts and ends the
proxies.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shadeproxy_bench.ports import free_port
from shadeproxy_bench.reliability.crash.board import READY, Board
from shadeproxy_bench.reliability.crash.objects import PAGE_BYTES

_LIMIT_S = 60.0
RAM_BYTES, DISK_BYTES = 1 << 19, 1 << 20


class Stuck(Exception):
    """A step of a proxy that usually takes milliseconds did not end within a minute."""


class Nursery:
    """Starts the process of nursery.py, which forks proxies, and sends orders to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shadeproxy_bench.reliability.crash.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Numpy must start no threads, because a process with threads must not fork.
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )

    def ask(self, **order: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@dataclass
class Home:
    """The directories, ports and settings that the proxies of one home use, one proxy after another. ``root``
    is on a disk, ``shm`` in memory. ``choices``: settings that differ between homes.
    """

    root: Path
    shm: Path
    nursery: Nursery
    choices: dict[str, str]
    small: bool = True
    pid: int = 0
    s3: int = field(default_factory=free_port)
    control: int = field(default_factory=free_port)
    log_start: int = 0
    config: Path | None = None

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.shm.mkdir(parents=True, exist_ok=True)
        self.board = Board(self.shm / "board")
        self.log = self.root / "log"
        self.log.touch()

    @property
    def ram(self) -> Path:
        return self.shm / "ram"

    @property
    def disk(self) -> Path:
        return self.root / "disk"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def settings(self) -> list[str]:
        values = {
            "s3.listen": f"127.0.0.1:{self.s3}",
            "control.listen": f"127.0.0.1:{self.control}",
            "cache.page_size": PAGE_BYTES,
            "cache.ram.path": self.ram,
            "cache.ram.capacity": RAM_BYTES,
            "cache.ram.min_free": 0,
            "cache.disk.path": self.disk,
            "cache.disk.capacity": DISK_BYTES,
            "cache.disk.min_free": 0,
            "state.path": self.state,
            "telemetry.log_format": "json",
        } | self.choices
        return [f"{key}={value}" for key, value in values.items()]

    # ------------------------------------------------------------------ life and death

    def start(self, *, die_at: int, armed: int, seed: int) -> None:
        """Start a proxy. It dies by itself at its step number ``die_at`` (0: at none), counted from the
        moment ``armed`` on.
        """
        self.board.clear(die_at=die_at, armed=armed)
        self.log_start = self.log.stat().st_size
        self.pid = self.nursery.ask(
            log=str(self.log),
            board=str(self.shm / "board"),
            settings=self.settings,
            config=str(self.config) if self.config else None,
            small=self.small,
            seed=seed,
        )

    @property
    def alive(self) -> bool:
        """True if the process of the latest proxy exists and is not a zombie."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def wait_ready(self) -> bool:
        """Wait until the proxy serves, and return True. Return False if its process ended before."""
        return self.wait_for(lambda: bool(self.board.cells[READY]))

    def wait_for(self, condition: Any) -> bool:
        """Wait until ``condition`` is true, and return True. Return False if the process ended before. Raises
        Stuck after a minute.
        """
        end = time.monotonic() + _LIMIT_S
        while not condition():
            if not self.alive:
                return False
            if time.monotonic() > end:
                raise Stuck(f"nothing happens; phases: {self.board.phases}; log: {self.said()[-2000:]}")
            time.sleep(0.002)
        return True

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self) -> int:
        """Wait until the proxy has ended. Return its exit status; a signal gives a negative number."""
        self.wait_for(lambda: not self.alive)
        return self.nursery.ask(wait=self.pid)

    def kill(self) -> int:
        """Send SIGKILL to the proxy. Wait for its end, and return its exit status."""
        self.signal(signal.SIGKILL)
        return self.end()

    # ------------------------------------------------------------------ its files and its log

    def said(self) -> str:
        """Return what the latest proxy has logged."""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            return log.read().decode("utf-8", "replace")

    def over_capacity(self) -> list[str]:
        """Return a line for each tier whose segments take more of their medium than its capacity."""
        return [
            f"{path.name} takes {taken} bytes, and may take {most}"
            for path, most in ((self.ram, RAM_BYTES), (self.disk, DISK_BYTES))
            if (taken := sum(file.stat().st_blocks * 512 for file in path.glob("*.seg"))) > most
        ]
