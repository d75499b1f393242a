"""A client process of a chaos run. It ends when its stdin is closed.

Its role is ``http`` (raw requests, slow readers, clients that hang up, the writer), ``sdk`` (batches by
locate and by the batch call) or ``boto``. Its counts are in the file ``--tally``, which is rewritten every
second.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import shadeproxy_sdk as shade
from shadeproxy_bench.reliability.chaos.boto import Stock
from shadeproxy_bench.reliability.chaos.data import ChaosData
from shadeproxy_bench.reliability.chaos.patience import Patience
from shadeproxy_bench.reliability.chaos.session import HardenedSession
from shadeproxy_bench.reliability.kit.link import Link
from shadeproxy_bench.reliability.kit.tally import Tally
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.reliability.soak import reads, writes
from shadeproxy_bench.reliability.soak.bulk import Trainer
from shadeproxy_bench.reliability.soak.client import parser_of, run_threads
from shadeproxy_bench.reliability.soak.session import Session
from shadeproxy_sdk.errors import Busy, Unreachable

LIMITS_S = {"http": 75.0, "sdk": 150.0, "boto": 200.0}
"""Longest time of one step of a client, by role. A step is a request, a batch, or a call of boto3 with its
retries.
"""
_SILENCE_S = 45.0
_FAST, _WRITE_EVERY_S, _AGAIN_S = 4, 0.15, 0.5
Step = Callable[[], None]


class Client:
    """The threads of one client. ``stop``: set this to end each thread after its current step."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.data = ChaosData(options.seed, options.bytes)
        self.versions = Versions(options.versions, len(self.data))
        self.tally, self.stop = Tally(), threading.Event()
        self.patience = Patience(options.limit or LIMITS_S[options.role], self.tally)

    def loops(self) -> list[Step]:
        """Return the step that each thread repeats until it is stopped."""
        if self.options.role == "sdk":
            return [self._training(way, turn) for turn, way in enumerate(("locate", "batch"))]
        if self.options.role == "boto":
            return [self._stock(turn) for turn in range(3)]
        steps = [reads.mixed] * _FAST + [reads.slow, reads.hang_up]
        return [self._asking(step, turn) for turn, step in enumerate(steps)] + [self._writing(len(steps))]

    def choices(self, turn: int) -> random.Random:
        """Return a random stream for one thread. Every thread of every process of a seed has another
        stream.
        """
        options = self.options
        return random.Random(f"{options.seed}/{options.role}/{options.turn}/{turn}")

    def _session(self, turn: int, receive_bytes: int = 0) -> HardenedSession:
        parts = urlsplit(self.options.s3)
        address = parts.hostname or "", parts.port or 0
        silence_s = min(_SILENCE_S, self.options.limit or _SILENCE_S)
        link = Link(address, receive_bytes=receive_bytes, silence_s=silence_s)
        return HardenedSession(address, self.data, self.versions, self.tally, self.choices(turn), link)

    def _repeat(self, kind: str, step: Step, every_s: float = 0.0) -> None:
        while not self.stop.wait(every_s):
            with self.patience.over(kind):
                step()

    def _asking(self, step: Callable[[Session], None], turn: int) -> Step:
        session = self._session(turn, reads.SIP_BYTES if step is reads.slow else 0)
        return lambda: self._repeat(step.__name__, lambda: step(session))

    def _writing(self, turn: int) -> Step:
        session = self._session(turn)
        return lambda: self._repeat("overwrite", lambda: writes.overwrite(session), _WRITE_EVERY_S)

    def _stock(self, turn: int) -> Step:
        choices = self.choices(turn)
        stock = Stock(
            self.options.s3, data=self.data, versions=self.versions, tally=self.tally, choices=choices
        )
        if turn:
            return lambda: self._repeat("boto3 read", stock.read)
        # Only this thread writes, so that the versions come one after the other.
        return lambda: self._repeat("boto3 write", stock.change, _WRITE_EVERY_S)

    def _training(self, way: str, turn: int) -> Step:
        def train() -> None:
            while (trainer := self._trainer(way, turn)) is None:
                if self.stop.wait(_AGAIN_S):
                    return
            self._repeat(way, trainer.step)
            trainer.leave()

        return train

    def _trainer(self, way: str, turn: int) -> Trainer | None:
        try:
            with self.patience.over(f"{way}: begin"):
                return Trainer(
                    way,
                    self.options.control,
                    data=self.data,
                    versions=self.versions,
                    tally=self.tally,
                    seed=hash((self.options.seed, self.options.turn, turn)),
                    excuse=excuse,
                )
        except shade.ShadeError as error:
            outcome = excuse(error)
            self.tally.failed(f"{way}: begin", outcome, str(error) if outcome == "error" else "")
            return None


def excuse(error: shade.ShadeError) -> str:
    """Return the outcome of a failed call of the SDK; "error" if it should not have failed."""
    if isinstance(error, shade.ControlError):
        return f"control: {error.status}" if error.status >= 500 or error.status == 429 else "error"
    if "does not answer" in str(error) or isinstance(error, Unreachable | Busy):
        return "no answer in time"
    return "error"


def main() -> None:
    parser = parser_of("A client process of a chaos run.", LIMITS_S)
    parser.add_argument("--limit", type=float, default=0.0, help="seconds for a step; 0: that of the role")
    client, failed = Client(parser.parse_args()), threading.Event()
    threads = run_threads(client.loops(), failed)
    ended = threading.Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    while ended.is_alive() and not failed.is_set():
        client.tally.write(client.options.tally)
        client.patience.look()
        ended.join(1.0)
    client.stop.set()
    while any(thread.is_alive() for thread in threads) and not client.patience.gave_up:
        time.sleep(0.1)
        client.patience.look()
    client.tally.write(client.options.tally)
    sys.exit(failed.is_set())


if __name__ == "__main__":
    main()
