"""Several readers, one for each rank or node, that read at the same pace."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.reader import Exchange, Reading, read
from shadeproxy_bench.server import Served

_PATIENCE_S = 60.0


class Meeting:
    """A point at which all readers wait for each other."""

    def __init__(self, readers: int) -> None:
        self._barrier = threading.Barrier(readers, timeout=_PATIENCE_S)

    def meet(self) -> None:
        """Wait for all readers. Raises BenchError if one of them has failed."""
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise BenchError("another reader failed") from error

    def fail(self) -> None:
        """Make every reader fail that waits here, now or later."""
        self._barrier.abort()


def together(exchanges: Iterable[Exchange], meeting: Meeting, *, every: int = 1) -> Iterator[Exchange]:
    """Yield ``exchanges``. Wait for all readers before the first exchange, and then before every
    ``every``-th.
    """
    for turn, exchange in enumerate(exchanges):
        if turn % every == 0:
            meeting.meet()
        yield exchange


def read_all(
    servers: Sequence[Served], exchanges: Sequence[Iterable[Exchange]], meeting: Meeting
) -> list[Reading]:
    """Read the exchanges of each server at the same time, over one connection to each. Raises the first error
    of a reader that did not fail because of another reader.
    """

    def one(server: Served, own: Iterable[Exchange]) -> Reading:
        try:
            return read(server.address, own, connections=1)
        except BaseException:
            meeting.fail()
            raise

    with ThreadPoolExecutor(len(servers)) as pool:
        readers = [pool.submit(one, *each) for each in zip(servers, exchanges, strict=True)]
    errors = [error for reader in readers if (error := reader.exception()) is not None]
    if errors:
        raise next((error for error in errors if "another reader" not in str(error)), errors[0])
    return [reader.result() for reader in readers]
