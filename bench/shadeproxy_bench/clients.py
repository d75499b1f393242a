"""Stock clients under load, in a process of their own: ``python -m shadeproxy_bench.clients``.

Each line on stdin is a job (``Job`` as JSON), and each line on stdout is the result of one job. Every worker
reads one object after another until the time is over. Bytes are counted as they arrive, so an object that
takes longer than the window counts for the part that arrived within it. The clock starts when every worker
has its first bytes, so starting threads and connecting are not measured. Workers do not wait for each other,
because hundreds of threads that are released at once do not make a steady load. With so many threads, Python
lets some wait for seconds, so the clock starts after half the length of the window at the latest.
"""

import asyncio
import importlib
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Literal

import msgspec

from shadeproxy.core.sigv4 import Credentials
from shadeproxy_bench.objects import BUCKET, body_of, key_of
from shadeproxy_bench.requests import CLIENT, REGION

ClientName = Literal["boto3", "obstore"]
_CHUNK_BYTES = 256 * 1024


class Job(msgspec.Struct, frozen=True):
    """A job: read ``objects`` objects of ``size_bytes`` in turn for ``seconds``, over ``connections``
    connections.

    ``compare``: compare the bytes of each worker's first object, as far as it is read, which costs the client
    time. ``credentials``: the access key and secret with which the client signs.
    """

    client: ClientName
    endpoint: str
    size_bytes: int
    objects: int
    connections: int
    seconds: float
    compare: bool = True
    credentials: Credentials = CLIENT


class Done(msgspec.Struct, frozen=True):
    """The result of a job. ``wall_s``: length of the window in seconds. ``bytes``: bytes received within it.
    ``error``: why the figures cannot be used; "" if nothing went wrong.
    """

    bytes: int = 0
    wall_s: float = 0.0
    error: str = ""


class WrongBytes(Exception):
    """A stock client received bytes that differ from the object's."""


class _Count:
    """The counts, the errors and the deadline that the threads of one job share."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.bytes = 0
        self.errors: list[Exception] = []
        self._latest_s = time.perf_counter() + job.seconds / 2
        self._deadline = math.inf
        self._to_come = job.connections
        self._numbers = itertools.cycle(range(job.objects))
        self._lock = threading.Lock()

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the objects that one worker shall read, until the time is over. At least one
        number is yielded.
        """
        while True:
            with self._lock:
                number = next(self._numbers)
            yield number
            if self.over:
                return

    @property
    def over(self) -> bool:
        return time.perf_counter() >= self._deadline or bool(self.errors)

    def came(self, number: int, position: int, chunk: Any, *, turn: int) -> int:
        """Count ``chunk``, which belongs to object number ``number`` and begins at ``position``. ``turn``:
        number of objects that the worker read before this one. Return the position after the chunk.
        """
        if turn == 0 and self.job.compare:
            self._compare(number, position, chunk)
        now_s = time.perf_counter()
        with self._lock:
            self._to_come -= turn == 0 and position == 0
            if self._deadline == math.inf:
                if not self._to_come or now_s >= self._latest_s:
                    self._deadline = now_s + self.job.seconds
            elif now_s < self._deadline:
                self.bytes += len(chunk)
        return position + len(chunk)

    def complete(self, number: int, got_bytes: int) -> None:
        if got_bytes != self.job.size_bytes:
            raise WrongBytes(f"{key_of(self.job.size_bytes, number)}: {got_bytes} bytes came")

    def _compare(self, number: int, position: int, chunk: Any) -> None:
        expected = body_of(self.job.size_bytes, number)[position : position + len(chunk)]
        if bytes(chunk) != bytes(expected):
            raise WrongBytes(f"{key_of(self.job.size_bytes, number)}: wrong bytes at {position}")


def _run_boto3(job: Job, client: Any) -> _Count:
    count = _Count(job)

    def work() -> None:
        try:
            for turn, number in enumerate(count.numbers()):
                answer = client.get_object(Bucket=BUCKET, Key=key_of(job.size_bytes, number))
                position = 0
                with closing(answer["Body"]) as body:
                    while chunk := body.read(_CHUNK_BYTES):
                        position = count.came(number, position, chunk, turn=turn)
                        if position < job.size_bytes and count.over:
                            return
                count.complete(number, position)
        except Exception as error:  # noqa: BLE001  every error of the library is reported to the parent
            count.errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(job.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count


def _make_boto3(job: Job) -> Any:
    config = importlib.import_module("botocore.config").Config(
        max_pool_connections=job.connections, s3={"addressing_style": "path"}, retries={"max_attempts": 1}
    )
    return importlib.import_module("boto3").client(
        "s3",
        endpoint_url=job.endpoint,
        region_name=REGION,
        aws_access_key_id=job.credentials.access_key,
        aws_secret_access_key=job.credentials.secret_key,
        config=config,
    )


async def _run_obstore(job: Job, store: Any) -> _Count:
    obstore, count = importlib.import_module("obstore"), _Count(job)

    async def work() -> None:
        try:
            for turn, number in enumerate(count.numbers()):
                answer = await obstore.get_async(store, key_of(job.size_bytes, number))
                position = 0
                async for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                    position = count.came(number, position, chunk, turn=turn)
                    if position < job.size_bytes and count.over:
                        return
                count.complete(number, position)
        except Exception as error:  # noqa: BLE001  every error of the library is reported to the parent
            count.errors.append(error)

    await asyncio.gather(*(work() for _ in range(job.connections)))
    return count


def _make_obstore(job: Job) -> Any:
    return importlib.import_module("obstore.store").S3Store(
        BUCKET,
        endpoint=job.endpoint,
        region=REGION,
        access_key_id=job.credentials.access_key,
        secret_access_key=job.credentials.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


class Clients:
    """Keeps one client for each combination of library, endpoint, credentials and connections until it is
    closed, as a long-running program would.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str, Credentials, int], Any] = {}

    def run(self, job: Job) -> Done:
        make: Callable[[Job], Any] = _make_boto3 if job.client == "boto3" else _make_obstore
        key = (job.client, job.endpoint, job.credentials, job.connections)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = make(job)
        count = _run_boto3(job, client) if job.client == "boto3" else asyncio.run(_run_obstore(job, client))
        error = f"{type(count.errors[0]).__name__}: {count.errors[0]}" if count.errors else ""
        return Done(count.bytes, job.seconds, error)

    def close(self) -> None:
        """Close boto3's clients, which ends their connections. A store of obstore ends its connections when
        Python frees it.
        """
        for (library, *_), client in self._clients.items():
            if library == "boto3":
                client.close()
        self._clients.clear()


def main() -> None:
    with closing(Clients()) as clients:
        for line in sys.stdin.buffer:
            done = clients.run(msgspec.json.decode(line, type=Job))
            sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
