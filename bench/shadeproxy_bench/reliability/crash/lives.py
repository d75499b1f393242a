"""The lives of the proxies of one home. In a life a proxy starts, its state is compared, it works under load,
and it dies. Between two lives files may be damaged.
"""

import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from random import Random

from shadeproxy_bench.ports import free_port
from shadeproxy_bench.reliability.crash import clients, damage
from shadeproxy_bench.reliability.crash.board import (
    ARM_AT_START,
    ARM_AT_STOP,
    ARM_WHEN_READY,
    AWAITED,
    KEPT,
    PLACED,
)
from shadeproxy_bench.reliability.crash.found import Found
from shadeproxy_bench.reliability.crash.home import Home, Stuck
from shadeproxy_bench.reliability.crash.scribe import Scribe
from shadeproxy_bench.reliability.crash.truth import Truth
from shadeproxy_bench.reliability.kit.processes import Phoenix

_ORIGIN = (sys.executable, "-m", "shadeproxy_bench.reliability.crash.origin")
_ENDS = {
    # The planned ends of a life, with their weights.
    "killed while it starts": 22,
    "dies at a step of its start": 10,
    "killed under load": 24,
    "dies at a step under load": 26,
    "killed while it stops": 6,
    "dies at a step while it stops": 6,
    "stopped in order": 6,
}
_FRESHNESS = ("immutable", "immutable", "immutable", "revalidate", "ttl")
_DAMAGE_SHARE, _QUIET_SHARE, _SDK_SHARE, _ORIGIN_SHARE = 0.4, 0.5, 0.15, 0.2
_LOAD_S, _START_S, _STOP_S = 0.25, 0.12, 0.06
_MOST_STEPS = 500
_TRACEBACK = re.compile(r"Traceback \(most recent|\"exception\": ")
_NOTICED = {
    "damaged records dropped": "records dropped at the start",
    "is not used: the catalogue": "catalogues not used",
    "the body of a record is damaged": "bodies found damaged",
    "record header is damaged": "headers found damaged",
    "damaged state database moved": "databases moved aside",
    "was not written by this proxy": "rows of the state refused",
    "stored state left out": "stored state left out",
    "of another format moved": "cache directories moved aside",
    "was a cache of": "caches emptied for another origin",
    "the tombstones are lost": "lists of overwritten objects found damaged",
}


class Family:
    """The proxies that follow each other in one home, and the clients around them."""

    def __init__(self, home: Home, rng: Random, found: Found, number: int) -> None:
        self._home, self._rng, self._found, self._number = home, rng, found, number
        self._buckets = home.root / "buckets"
        self._truth = Truth(self._buckets)
        self._scribe = Scribe(home.control)
        self._sdk: subprocess.Popen[bytes] | None = None
        self._origin: Phoenix | None = None
        self._origin_port = free_port()
        home.small = number % 3 != 2
        home.choices = {"policy.name": "default" if number % 4 == 3 else "lru"}
        config = home.root / "config.toml"
        freshness = _FRESHNESS[number % len(_FRESHNESS)]
        config.write_text(f'[[rules]]\nfreshness = "{freshness}"\n')
        home.config = config
        if number % 3 == 1:
            home.choices |= {
                "origin.kind": "s3",
                "origin.endpoint": f"http://127.0.0.1:{self._origin_port}",
                "origin.credentials": "anonymous",
                "origin.retry.backoff": "5 ms",
                "origin.retry.attempts": "3",
            }
            command = [*_ORIGIN, str(self._buckets), str(self._origin_port)]
            self._origin = Phoenix("origin", home.root, lambda _turn: command, piped=True)
            self._start_origin()
        else:
            home.choices |= {"origin.kind": "file", "origin.path": str(self._buckets)}
        # Damage to a page may be noticed much later, so nothing is damaged in homes where pages are counted.
        self._damages = number % 2 == 1
        # Facts about the previous life. ``_pages``: number of its pages that must survive; None: unknown.
        # ``_clean``: its proxy ended in order. ``_whole``: its files have stayed undamaged.
        self._pages: int | None = None
        self._clean = False
        self._whole = True

    def live(self, kills: int) -> None:
        """Run proxies until ``kills`` of them were killed or something went wrong."""
        most = self._found.kills + kills
        while self._found.kills < most and not self._found.failures:
            before = len(self._truth.wrong) + len(self._scribe.wrong)
            how = self._rng.choices(list(_ENDS), list(_ENDS.values()))[0]
            try:
                self._life(how)
            except Stuck as error:
                self._fail(how, str(error))
            wrong = [*self._truth.wrong, *self._scribe.wrong]
            for text in wrong[before:]:
                self._fail(how, text)
            self._between()

    def close(self) -> None:
        found = self._found
        found.compared += self._truth.compared
        found.told += self._scribe.told
        if self._home.alive:
            self._home.kill()
        self._end_sdk()
        if self._origin is not None:
            self._origin.__exit__()

    def _fail(self, how: str, text: str) -> None:
        life = self._found.starts
        self._found.failures.append(
            f"home {self._number}, life {life}, {how}: {text}; see {self._home.root} and {self._home.shm}"
        )

    # ------------------------------------------------------------------ one life

    def _life(self, how: str) -> None:
        home, rng, found = self._home, self._rng, self._found
        found.starts += 1
        step, armed = 0, ARM_AT_START
        if how == "dies at a step of its start":
            step = rng.randrange(1, 80)
        elif how == "dies at a step under load":
            step, armed = int(_MOST_STEPS ** rng.random()), ARM_WHEN_READY
        elif how == "dies at a step while it stops":
            step, armed = int(60 ** rng.random()), ARM_AT_STOP
        quiet = self._pages is not None and not self._damages and rng.random() < _QUIET_SHARE
        if quiet:
            # The reads of the training process would move pages while the pages are counted.
            self._end_sdk()
        home.start(die_at=step, armed=armed, seed=rng.randrange(1 << 30))
        if how == "killed while it starts":
            time.sleep(rng.random() * _START_S)
            self._bury(how, home.kill(), ready=False)
            return
        if not home.wait_ready():
            self._bury(how, home.end(), ready=False)
            return
        if not step:
            self._look(quiet=quiet)
        self._load(how, rng.randrange(1 << 30))

    def _look(self, *, quiet: bool) -> None:
        """Read all state and all objects before any write, and compare them. ``quiet``: nothing was read
        since the start, so count the pages too.
        """
        home, found = self._home, self._found
        if quiet and self._pages is not None:
            home.wait_for(lambda: not home.board.cells[AWAITED])
            there = int(home.board.cells[PLACED])
            found.survival_checks += 1
            found.pages_expected += self._pages
            found.pages_found += there
            if there < self._pages:
                self._fail("after a restart", f"{there} pages are left of {self._pages}")
        self._scribe.check(clean=self._clean and self._whole)
        for source, count in clients.read_all(home.s3, self._truth).items():
            found.answers[f"first read: {source}"] += count

    def _load(self, how: str, seed: int) -> None:
        home, rng, found = self._home, self._rng, self._found
        crowd = clients.Crowd(home.s3, self._truth, seed)
        self._scribe.start(seed)
        self._visit()
        end = time.monotonic() + rng.random() * _LOAD_S
        if how == "dies at a step under load":
            end += 4 * _LOAD_S
        while time.monotonic() < end and home.alive:
            time.sleep(0.002)
        stopping = "stop" in how
        if stopping:
            home.signal(signal.SIGTERM)
            crowd.end()
            self._scribe.end()
        if how == "killed while it stops":
            time.sleep(rng.random() * _STOP_S)
        if how in {"stopped in order", "dies at a step while it stops"}:
            home.wait_for(lambda: not home.alive)
        status = home.kill()
        crowd.end()
        self._scribe.end()
        found.answers.update({f"under load: {source}": n for source, n in crowd.sources.items()})
        self._bury(how, status)

    def _visit(self) -> None:
        """Start a training process if there is none. Now and then replace it by a new one. Now and then kill
        the origin while it answers, and start the origin again.
        """
        if self._sdk is None or self._rng.random() < _SDK_SHARE:
            self._end_sdk()
            with (self._home.root / "sdk").open("wb") as said:
                self._sdk = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "shadeproxy_bench.reliability.crash.reader",
                        f"http://127.0.0.1:{self._home.control}",
                        "1",
                    ],
                    stdout=said,
                    stderr=subprocess.DEVNULL,
                )
        if self._origin is not None and self._rng.random() < _ORIGIN_SHARE:
            time.sleep(self._rng.random() * _LOAD_S / 2)
            self._origin.end(signal.SIGKILL)
            self._found.origin_kills += 1
            self._start_origin()

    def _start_origin(self) -> None:
        assert self._origin is not None, "only homes with an origin over HTTP start one"
        started = self._origin.start().process.stdout
        assert started is not None
        started.readline()

    def _end_sdk(self) -> None:
        if self._sdk is None:
            return
        if self._sdk.poll() is None:
            self._sdk.kill()
            self._found.sdk_kills += 1
        elif self._sdk.returncode != -signal.SIGKILL:
            self._fail("a training process", f"ended with {self._sdk.returncode}")
        self._sdk.wait()
        said = (self._home.root / "sdk").read_text().split("\n")
        if any(line.startswith("wrong") for line in said):
            self._fail("a training process", said[-2])
        self._found.right_by_sdk += max((int(line) for line in said[:-1] if line.isdigit()), default=0)
        self._sdk = None

    # ------------------------------------------------------------------ afterwards

    def _bury(self, how: str, status: int, *, ready: bool = True) -> None:
        """Judge the end of a life. ``ready``: its proxy became ready."""
        home, found, board = self._home, self._found, self._home.board
        said = home.said()
        for mark, name in _NOTICED.items():
            found.noticed[name] += said.count(mark)
        if _TRACEBACK.search(said):
            self._fail(how, f"a traceback: {said[-3000:]}")
        if status == -signal.SIGKILL:
            found.kills += 1
            found.deaths[how] += 1
            found.steps.update([board.died_at] if board.died_at else [])
            found.phases.update(board.phases or ["serving, nothing of this"])
        elif status == 0:
            found.stops += 1
        elif status in {1, 2} and not self._whole and "error: " in said:
            self._refused(said)
        else:
            self._fail(how, f"it ended with {status}: {said[-2000:]}")
        for text in home.over_capacity():
            self._fail(how, text)
        recovered = bool(board.cells[PLACED]) and not board.cells[AWAITED]
        self._pages = int(board.cells[KEPT]) if recovered else None
        # A proxy that died while it started may not have read the damaged files, so the next one will.
        self._clean, self._whole = status == 0, self._whole or ready
        self._truth.look(settled=self._origin is None)

    def _refused(self, said: str) -> None:
        """Check that the error of a refused start names the directory to change. Remove the directories, so
        that the next start succeeds.
        """
        text = next(line for line in said.splitlines() if line.startswith("error: "))
        self._found.refused += 1
        self._found.refusals[re.sub(r"/\S+|\d+", "...", text)] += 1
        if ";" not in text or (str(self._home.root) not in text and str(self._home.shm) not in text):
            self._fail("a refusal", f"it says not what to change: {text}")
        for path in (self._home.ram, self._home.disk, self._home.state):
            shutil.rmtree(path, ignore_errors=True)
        self._whole = True
        self._scribe.forget()

    def _between(self) -> None:
        """Now and then damage some files of the proxy that has ended."""
        if not self._damages or self._rng.random() >= _DAMAGE_SHARE:
            return
        paths = damage.victims([self._home.ram, self._home.disk, self._home.state])
        for _ in range(self._rng.choice((1, 1, 1, 3))):
            if not paths:
                return
            path = damage.choose(paths, self._rng)
            paths.remove(path)
            with suppress(FileNotFoundError):
                what = damage.kind_of(path)
                self._found.damaged[what, damage.spoil(path, self._rng)] += 1
                self._whole = False
                if path.parent == self._home.state:
                    self._scribe.forget()
