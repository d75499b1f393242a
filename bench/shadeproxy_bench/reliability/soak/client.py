"""One client process of a soak. It ends when its stdin is closed.

Role ``http``: threads with a connection each, slow readers, and clients that hang up; the first of these
processes also writes. Role ``sdk``: batches by locate and by the batch call. The counts are in the file
``--tally``, which is rewritten every second.
"""

import argparse
import random
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from shadeproxy_bench.reliability.kit.bodies import DataSet
from shadeproxy_bench.reliability.kit.link import Link
from shadeproxy_bench.reliability.kit.tally import Tally
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.reliability.soak import reads, writes
from shadeproxy_bench.reliability.soak.bulk import Trainer
from shadeproxy_bench.reliability.soak.session import Session

_FAST, _SLOW = 5, 3
_WRITE_EVERY_S, _PURGE_EVERY = 0.2, 200


class Client:
    """The threads of one client. ``stop``: set this to end each thread after its current step."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.data = DataSet(options.seed, options.bytes)
        self.versions = Versions(options.versions, len(self.data))
        self.tally, self.stop = Tally(), threading.Event()
        self.s3, self.control = (
            (parts.hostname or "", parts.port or 0) for parts in map(urlsplit, (options.s3, options.control))
        )

    def loops(self) -> list[Callable[[], None]]:
        """Return the functions that the threads repeat until they are stopped."""
        if self.options.role == "sdk":
            return [self._training(way, turn) for turn, way in enumerate(("locate", "batch"))]
        steps = [reads.mixed] * _FAST + [reads.slow] * _SLOW + [reads.hang_up]
        loops = [self._repeating(step, turn) for turn, step in enumerate(steps)]
        return [*loops, self._writing(len(steps))] if self.options.turn == 0 else loops

    def _session(self, turn: int, receive_bytes: int = 0) -> Session:
        # Every thread of every process of a seed has another random stream.
        chosen = random.Random(f"{self.options.seed}/{self.options.turn}/{turn}")
        link = Link(self.s3, receive_bytes=receive_bytes)
        return Session(self.s3, self.data, self.versions, self.tally, chosen, link)

    def _repeating(self, step: Callable[[Session], None], turn: int) -> Callable[[], None]:
        session = self._session(turn, reads.SIP_BYTES if step is reads.slow else 0)

        def repeat() -> None:
            while not self.stop.is_set():
                step(session)
            session.link.close()

        return repeat

    def _writing(self, turn: int) -> Callable[[], None]:
        session = self._session(turn)

        def write() -> None:
            count = 0
            while not self.stop.wait(_WRITE_EVERY_S):
                writes.overwrite(session)
                count += 1
                if count % _PURGE_EVERY == 0:
                    writes.purge(session, self.control)
            session.link.close()

        return write

    def _training(self, way: str, turn: int) -> Callable[[], None]:
        def train() -> None:
            seed = self.options.seed * 2 + turn
            trainer = Trainer(
                way,
                self.options.control,
                data=self.data,
                versions=self.versions,
                tally=self.tally,
                seed=seed,
            )
            while not self.stop.is_set():
                trainer.step()
            trainer.close()

        return train


def run_threads(loops: Iterable[Callable[[], None]], failed: threading.Event) -> list[threading.Thread]:
    """Start a thread for each loop. A thread that dies sets ``failed``."""

    def run(loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException:
            # A dead thread is a client that asks for nothing. The run must not pass because of that.
            failed.set()
            raise

    # Daemon threads, so that one that hangs does not keep its process alive.
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


def main() -> None:
    client = Client(parser_of("A client process of a soak.", ("http", "sdk")).parse_args())
    failed = threading.Event()

    threads = run_threads(client.loops(), failed)
    ended = threading.Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    while ended.is_alive() and not failed.is_set():
        client.tally.write(client.options.tally)
        ended.join(1.0)
    client.stop.set()
    for thread in threads:
        thread.join()
    client.tally.write(client.options.tally)
    sys.exit(failed.is_set())


if __name__ == "__main__":
    main()
