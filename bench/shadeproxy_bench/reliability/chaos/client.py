"""A client process of a chaos run. It ends when its stdin is closed.

Its role is ``http`` (raw requests, slow readers, clients that hang up, the writer), ``sdk`` (batches by
locate and by the batch call) or ``boto``. The process writes its counts to the file ``--tally`` every second.
"""

import argparse
import random
from collections.abc import Callable
from functools import partial

import shadeproxy_sdk as shade
from shadeproxy_bench.reliability.chaos.boto import Stock
from shadeproxy_bench.reliability.chaos.data import ChaosData
from shadeproxy_bench.reliability.chaos.patience import Patience
from shadeproxy_bench.reliability.chaos.session import HardenedSession
from shadeproxy_bench.reliability.kit.link import Link
from shadeproxy_bench.reliability.soak import reads, writes
from shadeproxy_bench.reliability.soak.bulk import Trainer
from shadeproxy_bench.reliability.soak.client import Client, parser_of, run
from shadeproxy_sdk.errors import Busy, Unreachable

LIMITS_S = {"http": 75.0, "sdk": 150.0, "boto": 200.0}
"""Longest time of one step of a client, by the client's role. A step is a request, a batch, or a call of
boto3 with its retries.
"""
_SILENCE_S = 45.0
_FAST, _WRITE_EVERY_S, _AGAIN_S = 4, 0.15, 0.5


class ChaosClient(Client):
    """A client that counts a failed step as an error only if no injected fault explains the failure.
    ``LIMITS_S`` limits the time of each step.
    """

    session_type = HardenedSession
    data: ChaosData

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, ChaosData(options.seed, options.bytes))
        self.patience = Patience(options.limit or LIMITS_S[options.role], self.tally)

    def loops(self) -> list[Callable[[], None]]:
        if self.options.role == "boto":
            return [partial(self._stock, turn) for turn in range(3)]
        if self.options.role == "sdk":
            return super().loops()
        steps = [reads.mixed] * _FAST + [reads.slow, reads.hang_up]
        return [*self.asking(steps), partial(self.write, len(steps))]

    def look(self) -> bool:
        self.patience.look()
        return not self.patience.gave_up

    def choices(self, turn: int) -> random.Random:
        options = self.options
        return random.Random(f"{options.seed}/{options.role}/{options.turn}/{turn}")

    def link(self, receive_bytes: int) -> Link:
        silence_s = min(_SILENCE_S, self.options.limit or _SILENCE_S)
        return Link(self.s3, receive_bytes=receive_bytes, silence_s=silence_s)

    def repeat(self, kind: str, step: Callable[[], None], every_s: float = 0.0) -> None:
        def watched() -> None:
            with self.patience.over(kind):
                step()

        super().repeat(kind, watched, every_s)

    def write(self, turn: int) -> None:
        """Overwrite objects again and again. Purge nothing."""
        self.repeat("overwrite", partial(writes.overwrite, self.session(turn)), _WRITE_EVERY_S)

    def _stock(self, turn: int) -> None:
        stock = Stock(
            self.options.s3,
            data=self.data,
            versions=self.versions,
            tally=self.tally,
            choices=self.choices(turn),
        )
        if turn:
            self.repeat("boto3 read", stock.read)
        else:
            # Only one thread writes, so that the versions of an object follow each other.
            self.repeat("boto3 write", stock.change, _WRITE_EVERY_S)

    def train(self, way: str, turn: int) -> None:
        while (trainer := self._begin(way, turn)) is None:
            if self.stop.wait(_AGAIN_S):
                return
        self.repeat(way, trainer.step)
        trainer.leave()

    def _begin(self, way: str, turn: int) -> Trainer | None:
        try:
            with self.patience.over(f"{way}: begin"):
                seed = hash((self.options.seed, self.options.turn, turn))
                return self.trainer(way, seed, excuse=excuse)
        except shade.ShadeError as error:
            outcome = excuse(error)
            self.tally.failed(f"{way}: begin", outcome, str(error) if outcome == "error" else "")
            return None


def excuse(error: shade.ShadeError) -> str:
    """Return the outcome to count for a failed call of the SDK. The outcome is "error" if no injected fault
    explains the failure.
    """
    if isinstance(error, shade.ControlError):
        return f"control: {error.status}" if error.status >= 500 or error.status == 429 else "error"
    if "does not answer" in str(error) or isinstance(error, Unreachable | Busy):
        return "no answer in time"
    return "error"


def main() -> None:
    parser = parser_of("A client process of a chaos run.", LIMITS_S)
    parser.add_argument("--limit", type=float, default=0.0, help="seconds for a step; 0: that of the role")
    run(ChaosClient(parser.parse_args()))


if __name__ == "__main__":
    main()
