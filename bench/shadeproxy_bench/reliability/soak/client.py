"""One client process of a soak. It ends when its stdin is closed.

Role ``http``: threads that each have a connection; some of them read slowly, and one hangs up. The first of
these processes also writes. Role ``sdk``: batches by locate and by the batch call. The process writes its
counts to the file ``--tally`` every second.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Unpack
from urllib.parse import urlsplit

from shadeproxy_bench.reliability.kit.bodies import DataSet
from shadeproxy_bench.reliability.kit.link import Link
from shadeproxy_bench.reliability.kit.tally import Tally
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.reliability.soak import reads, writes
from shadeproxy_bench.reliability.soak.bulk import Excusing, Trainer
from shadeproxy_bench.reliability.soak.session import Session

_FAST, _SLOW = 5, 3
_WRITE_EVERY_S, _PURGE_EVERY = 0.2, 200


class Client:
    """The threads of one client process, of a soak or of chaos. ``stop``: set this to end each thread after
    its current step.
    """

    session_type: type[Session] = Session

    def __init__(self, options: argparse.Namespace, data: DataSet) -> None:
        self.options, self.data = options, data
        self.versions = Versions(options.versions, len(data))
        self.tally, self.stop = Tally(), threading.Event()
        self.s3, self.control = (
            (parts.hostname or "", parts.port or 0) for parts in map(urlsplit, (options.s3, options.control))
        )

    def loops(self) -> list[Callable[[], None]]:
        """Return the functions that the threads run, one each, until the client is stopped."""
        if self.options.role == "sdk":
            return [partial(self.train, way, turn) for turn, way in enumerate(("locate", "batch"))]
        steps = [reads.mixed] * _FAST + [reads.slow] * _SLOW + [reads.hang_up]
        loops = self.asking(steps)
        return [*loops, partial(self.write, len(steps))] if self.options.turn == 0 else loops

    def look(self) -> bool:
        """Check the threads. This is called now and then. Return False if some will not end, so that it is
        useless to wait for them.
        """
        return True

    # ------------------------------------------------------------------ parts of the loops

    def choices(self, turn: int) -> random.Random:
        """Return the random numbers of one thread. With one seed, every thread of every process has numbers
        of its own.
        """
        return random.Random(f"{self.options.seed}/{self.options.turn}/{turn}")

    def link(self, receive_bytes: int) -> Link:
        """Return a connection to the proxy. ``receive_bytes``: size of its receive buffer; 0: the
        system's.
        """
        return Link(self.s3, receive_bytes=receive_bytes)

    def repeat(self, _kind: str, step: Callable[[], None], every_s: float = 0.0) -> None:
        """Repeat a step until the client is stopped. ``every_s``: pause before each step."""
        while not self.stop.wait(every_s):
            step()

    def asking(self, steps: Sequence[Callable[[Session], None]]) -> list[Callable[[], None]]:
        """Return a loop for each of ``steps``, which repeats the step over a connection of its own."""
        return [partial(self._ask, step, turn) for turn, step in enumerate(steps)]

    def session(self, turn: int, receive_bytes: int = 0) -> Session:
        """Return the session by which thread number ``turn`` sends its requests."""
        link = self.link(receive_bytes)
        return self.session_type(self.s3, self.data, self.versions, self.tally, self.choices(turn), link)

    def _ask(self, step: Callable[[Session], None], turn: int) -> None:
        session = self.session(turn, reads.SIP_BYTES if step is reads.slow else 0)
        self.repeat(step.__name__, partial(step, session))
        session.link.close()

    # ------------------------------------------------------------------ loops of a soak

    def write(self, turn: int) -> None:
        """Overwrite objects, and purge some from the cache now and then."""
        session, counted = self.session(turn), count(1)

        def change() -> None:
            writes.overwrite(session)
            if next(counted) % _PURGE_EVERY == 0:
                writes.purge(session, self.control)

        self.repeat("overwrite", change, _WRITE_EVERY_S)
        session.link.close()

    def train(self, way: str, turn: int) -> None:
        """Read batches through the SDK, by the way ``way``, until the client is stopped."""
        trainer = self.trainer(way, self.options.seed * 2 + turn)
        self.repeat(way, trainer.step)
        trainer.close()

    def trainer(self, way: str, seed: int, **more: Unpack[Excusing]) -> Trainer:
        """Return the training of one thread, which reads batches by ``way``."""
        return Trainer(
            way,
            self.options.control,
            data=self.data,
            versions=self.versions,
            tally=self.tally,
            seed=seed,
            **more,
        )


def run_threads(loops: Iterable[Callable[[], None]], failed: threading.Event) -> list[threading.Thread]:
    """Start a thread for each loop. A thread that dies sets ``failed``."""

    def run(loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException:
            # A dead thread sends no requests, and then finds no faults. Make the process fail, so that the
            # run does not pass.
            failed.set()
            raise

    # As daemons, threads that hang do not keep their process alive.
    threads = [threading.Thread(target=run, args=(loop,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    return threads


def parser_of(description: str, roles: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of the arguments of a client process, for a soak or for chaos."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--role", choices=tuple(roles), required=True)
    parser.add_argument("--turn", type=int, required=True, help="which of the client processes")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="of the data set")
    parser.add_argument("--s3", required=True, help="URL of the S3 listener")
    parser.add_argument("--control", required=True, help="URL of the control listener")
    parser.add_argument("--versions", type=Path, required=True)
    parser.add_argument("--tally", type=Path, required=True)
    return parser


def run(client: Client) -> None:
    """Run the threads of a client until stdin ends or a thread dies. Then end the process."""
    failed = threading.Event()
    threads = run_threads(client.loops(), failed)
    ended = threading.Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    while ended.is_alive() and not failed.is_set():
        client.tally.write(client.options.tally)
        client.look()
        ended.join(1.0)
    client.stop.set()
    while any(thread.is_alive() for thread in threads) and client.look():
        time.sleep(0.1)
    client.tally.write(client.options.tally)
    sys.exit(failed.is_set())


def main() -> None:
    options = parser_of("A client process of a soak.", ("http", "sdk")).parse_args()
    run(Client(options, DataSet(options.seed, options.bytes)))


if __name__ == "__main__":
    main()
