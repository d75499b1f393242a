"""An outage of Redis under a training: readers of a dataset go on, and a writer of checkpoints tries again
until Redis is back.
"""

import importlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Self

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.objects import BUCKET, Piece, key_of
from shadeproxy_bench.owned import Owned
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.server import Served
from shadeproxy_bench.suites.cluster_failures import Readers

_CHECKPOINT_BYTES = 8_000_000
_EVERY_S = 5.0
_TRIES = 20


class Outage(NamedTuple):
    """The figures of one outage. ``reads``: reads that failed. ``checkpoints``: checkpoints that failed or
    were lost.
    """

    reads: Measured
    checkpoints: Measured


class Writer:
    """A writer of checkpoints, with boto3 set as docs/cluster.md says. It writes a checkpoint every five
    seconds until the ``with`` block ends. ``written``: paths of acknowledged checkpoints. ``failures``: an
    error for each failed checkpoint. ``longest_s``: duration of the longest write, with all of its tries.
    ``statuses``: number of answers with each status.
    """

    def __init__(self, server: Served) -> None:
        self.written: set[str] = set()
        self.failures: list[str] = []
        self.longest_s = 0.0
        self.statuses: Counter[int] = Counter()
        self._client = _client(server)
        self._client.meta.events.register("response-received.s3.PutObject", self._count)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    def _write(self) -> None:
        number = 0
        while not self._over.is_set():
            began, piece = time.monotonic(), Piece(_CHECKPOINT_BYTES, number)
            number += 1
            try:
                self._client.put_object(
                    Bucket=BUCKET, Key=key_of(piece.size_bytes, piece.number), Body=bytes(piece.body())
                )
            except Exception as error:  # noqa: BLE001  whatever the library raises would end a training
                self.failures.append(f"{piece.path}: {error}")
            else:
                self.written.add(piece.path)
            took_s = time.monotonic() - began
            self.longest_s = max(self.longest_s, took_s)
            self._over.wait(max(0.0, _EVERY_S - took_s))

    def _count(self, response_dict: dict[str, Any] | None, **_others: object) -> None:
        if response_dict is not None:
            self.statuses[response_dict["status_code"]] += 1


def outage(cluster: Owned, pieces: Sequence[Piece], *, seconds: float) -> Outage:
    """Kill the Redis server for ``seconds``. Meanwhile a reader reads at each node, and a writer writes at
    the first node. Return the failed reads, and the failed or lost checkpoints.

    Raises BenchError if no write was refused: then the outage did not reach the writer.
    """
    with (
        Readers(cluster.members, pieces, tries=1) as readers,
        Writer(cluster.members[0].served) as writer,
    ):
        time.sleep(_EVERY_S)
        cluster.engine.kill()
        time.sleep(seconds)
        reads = readers.reads
        cluster.engine.start()
        began = time.monotonic()
        cluster.settle(cluster.members)
        back_s = time.monotonic() - began
        time.sleep(_EVERY_S)
    lost = writer.written - cluster.counts().stored
    if not writer.statuses[503]:
        raise BenchError(f"no write was refused in an outage of {seconds:g} s: {dict(writer.statuses)}")
    answers = ", ".join(f"{status}: {count}" for status, count in sorted(writer.statuses.items()))
    first = f"; first: {writer.failures[0]}" if writer.failures else ""
    note = (
        f"{len(writer.written)} acknowledged, {len(lost)} of them lost; answers {answers}; the longest"
        f" took {writer.longest_s:.1f} s with all tries; all nodes had a lease {back_s:.1f} s after"
        f" the restart{first}"
    )
    return Outage(
        readers.measured(f"{reads} until the engine was back"),
        Measured(float(len(writer.failures) + len(lost)), note=note),
    )


def rows(
    scale: Scale, cluster: Callable[[], Owned], pieces: Callable[[], Sequence[Piece]]
) -> Iterator[Planned]:
    """Yield the rows of the outage. ``cluster`` starts the proxies, or returns them if they run. ``pieces``
    returns objects of a dataset in use, which their owners have cached.
    """
    seconds = float(scale.pick(60, 10))

    @cache
    def found() -> Outage:
        return outage(cluster(), pieces(), seconds=seconds)

    none = Target(0.0, at_least=False, of="ours")
    yield Planned(
        "owned: reads of a training that fail in a long outage of the engine",
        "reads",
        none,
        f"kill -9 of Redis, and a start after {seconds:g} s; a reader at each node, of cached objects of all"
        " owners, every body compared, one try a read",
        lambda: found().reads,
    )
    yield Planned(
        "owned: checkpoints of a training that fail or are lost in a long outage of the engine",
        "writes",
        none,
        f"beside the readers of the row above: boto3 writes {_CHECKPOINT_BYTES // 10**6} MB every"
        f" {_EVERY_S:g} s through one node, with retries in mode standard, {_TRIES} tries at most;"
        " failed writes, and acknowledged writes that the origin did not carry out",
        lambda: found().checkpoints,
    )


def _client(server: Served) -> Any:
    unsigned = importlib.import_module("botocore").UNSIGNED
    config = importlib.import_module("botocore.config").Config(
        signature_version=unsigned,
        s3={"addressing_style": "path"},
        retries={"mode": "standard", "total_max_attempts": _TRIES},
        # The origin compares the body with the object's bytes, so the client may not frame it with a
        # checksum.
        request_checksum_calculation="when_required",
    )
    return importlib.import_module("boto3").client(
        "s3", endpoint_url=server.url, region_name="us-east-1", config=config
    )
