"""Where proxies live one after another: directories, settings, and how one is started and ended."""

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

from .board import READY, Board
from .objects import PAGE_BYTES

_LIMIT_S = 60.0
ROOT = Path(__file__).parents[2]
RAM_BYTES, DISK_BYTES = 1 << 19, 1 << 20


class Stuck(Exception):
    """A proxy did not do in a minute what takes milliseconds."""


class Nursery:
    """See nursery.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            # A process with threads must not fork.
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
    """``root``: on a disk. ``shm``: in memory. ``choices``: settings that differ from home to home."""

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
        """Begin a life, that ends by itself at step ``die_at`` (0: at none)."""
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
        """Whether the present process is there and no corpse."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def wait_ready(self) -> bool:
        """Whether it serves; False when it ended instead."""
        return self.wait_for(lambda: bool(self.board.cells[READY]))

    def wait_for(self, condition: Any) -> bool:
        """Whether ``condition`` came true before the process ended. Raises Stuck."""
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
        """Wait for the end that was asked for: the exit status, negative for a signal."""
        self.wait_for(lambda: not self.alive)
        return self.nursery.ask(wait=self.pid)

    def kill(self) -> int:
        """kill -9."""
        self.signal(signal.SIGKILL)
        return self.end()

    # ------------------------------------------------------------------ what it left, and said

    def said(self) -> str:
        """The log of the present life."""
        with self.log.open("rb") as log:
            log.seek(self.log_start)
            return log.read().decode("utf-8", "replace")

    def over_capacity(self) -> list[str]:
        """Tiers whose segments take more on their medium than they may."""
        return [
            f"{path.name} takes {taken} bytes, and may take {most}"
            for path, most in ((self.ram, RAM_BYTES), (self.disk, DISK_BYTES))
            if (taken := sum(file.stat().st_blocks * 512 for file in path.glob("*.seg"))) > most
        ]
