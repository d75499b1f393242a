"""Stock clients under load, in a process of their own: ``python -m shadeproxy.bench.clients``.

One job a line on stdin (``Job`` as JSON), one result a line on stdout. Every worker reads objects one after
the other until the time is over; bytes are counted as they arrive, so that objects which take longer than the
window count for what came of them. The first bytes of each worker's first object are compared.
"""

import asyncio
import importlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from shadeproxy.bench.objects import BUCKET, body_of, key_of
from shadeproxy.bench.requests import CLIENT, REGION

ClientName = Literal["boto3", "obstore"]
_CHUNK_BYTES = 256 * 1024


class Job(msgspec.Struct, frozen=True):
    """Read ``objects`` objects of ``size_bytes`` in turn for ``seconds``, ``connections`` at a time."""

    client: ClientName
    endpoint: str
    size_bytes: int
    objects: int
    connections: int
    seconds: float


class Done(msgspec.Struct, frozen=True):
    """``error``: why the figures are worth nothing; "" when nothing went wrong."""

    bytes: int = 0
    wall_s: float = 0.0
    error: str = ""


class WrongBytes(Exception):
    """A stock client got other bytes than the object has."""


class _Count:
    """What the workers of one job share."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.deadline = time.perf_counter() + job.seconds
        self.bytes = 0
        self.errors: list[BaseException] = []
        self._numbers = itertools.cycle(range(job.objects))
        self._lock = threading.Lock()

    def numbers(self) -> Iterator[int]:
        """Objects for one worker, until the time is over; at least one."""
        while True:
            with self._lock:
                number = next(self._numbers)
            yield number
            if self.over:
                return

    @property
    def over(self) -> bool:
        return time.perf_counter() >= self.deadline

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count

    def complete(self, number: int, got_bytes: int) -> None:
        if got_bytes != self.job.size_bytes:
            raise WrongBytes(f"{key_of(self.job.size_bytes, number)}: {got_bytes} bytes came")

    def compare(self, number: int, position: int, chunk: Any) -> None:
        expected = body_of(self.job.size_bytes, number)[position : position + len(chunk)]
        if bytes(chunk) != bytes(expected):
            raise WrongBytes(f"{key_of(self.job.size_bytes, number)}: wrong bytes at {position}")


def _run_boto3(job: Job, client: Any) -> _Count:
    count = _Count(job)

    def work() -> None:
        try:
            for turn, number in enumerate(count.numbers()):
                body = client.get_object(Bucket=BUCKET, Key=key_of(job.size_bytes, number))["Body"]
                position = 0
                while chunk := body.read(_CHUNK_BYTES):
                    if turn == 0:
                        count.compare(number, position, chunk)
                    position += len(chunk)
                    count.add(len(chunk))
                    if count.over and position < job.size_bytes:
                        body.close()
                        return
                count.complete(number, position)
        except Exception as error:  # noqa: BLE001  whatever the library raises is told to the parent
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
        aws_access_key_id=CLIENT.access_key,
        aws_secret_access_key=CLIENT.secret_key,
        config=config,
    )


async def _run_obstore(job: Job, store: Any) -> _Count:
    obstore, count = importlib.import_module("obstore"), _Count(job)

    async def work() -> None:
        for turn, number in enumerate(count.numbers()):
            answer = await obstore.get_async(store, key_of(job.size_bytes, number))
            position = 0
            async for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                if turn == 0:
                    count.compare(number, position, chunk)
                position += len(chunk)
                count.add(len(chunk))
                if count.over and position < job.size_bytes:
                    return
            count.complete(number, position)

    results = await asyncio.gather(*(work() for _ in range(job.connections)), return_exceptions=True)
    count.errors += [result for result in results if isinstance(result, BaseException)]
    return count


def _make_obstore(job: Job) -> Any:
    return importlib.import_module("obstore.store").S3Store(
        BUCKET,
        endpoint=job.endpoint,
        region=REGION,
        access_key_id=CLIENT.access_key,
        secret_access_key=CLIENT.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


class Clients:
    """Keeps one client for each (library, endpoint, connections), as a program would."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str, int], Any] = {}

    def run(self, job: Job) -> Done:
        make: Callable[[Job], Any] = _make_boto3 if job.client == "boto3" else _make_obstore
        key = (job.client, job.endpoint, job.connections)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = make(job)
        started = time.perf_counter()
        count = _run_boto3(job, client) if job.client == "boto3" else asyncio.run(_run_obstore(job, client))
        wall_s = time.perf_counter() - started
        error = f"{type(count.errors[0]).__name__}: {count.errors[0]}" if count.errors else ""
        return Done(count.bytes, wall_s, error)


def main() -> None:
    clients = Clients()
    for line in sys.stdin.buffer:
        done = clients.run(msgspec.json.decode(line, type=Job))
        sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
