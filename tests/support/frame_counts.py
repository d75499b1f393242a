"""Counts the Python calls that a request costs the product. test_frame_budget.py compares the counts.

A frame is a "call" event of ``sys.setprofile`` in the thread of the event loop: a function is entered, or a
coroutine or generator continues. Callbacks of the event loop count as well. Only frames of code in files
below shadeproxy/ of this tree are counted. These are not counted:

- asyncio, uvloop, aiohttp, numpy and the tests; functions in C; generated code (``__init__`` of a dataclass);
- the origin: a server of the tests, in the same event loop;
- other threads. There is no disk tier, and no request that is counted uses a thread;
- timers (flush of the access log, keep-alive, probes) and work done once a second (the Date of an answer, the
  last sign of life of a job): ``StillLoop`` runs no timer, and the time of ``StillClock`` does not pass.

So a count depends on the code alone, and not on the machine, its load, or earlier tests of the process.
"""

import asyncio
import fcntl
import gc
import socket
import struct
import termios
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any, ClassVar

import msgspec
import pytest
import uvloop

import shadeproxy
from shadeproxy.api.s3 import compiled
from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings
from shadeproxy.core import heads
from tests.support.calls import recorded

MISSES = 32
"""The number of misses that arrive in one turn of the event loop, each on a connection of its own."""
BATCH = 256
UPLOADED_BYTES = 10_000
ROUNDS = 3

_PRODUCT = f"{Path(shadeproxy.__file__).parent}/"
_NOW_S = 1_800_000_000.0
_NEVER_S = 1e6
# The number of turns of the event loop to wait for after the last answer, because some work ends after it.
# With twice as many turns, the counts are the same.
_TURNS = 100
_SCORES = "application/vnd.shadeproxy.scores"
_BYTES = "application/octet-stream"
_IDS = "application/vnd.shadeproxy.ids"


@dataclass(frozen=True)
class Count:
    """The frames of some requests, in the order of the calls. ``requests``: how many requests these were."""

    calls: Sequence[CodeType]
    requests: int = 1

    @property
    def frames(self) -> float:
        """Return the number of frames of one request."""
        return len(self.calls) / self.requests

    @property
    def files(self) -> int:
        return len(self.by_file())

    def by_file(self) -> Counter[str]:
        """Return, for each file, the number of frames of all requests."""
        return Counter(code.co_filename.removeprefix(_PRODUCT) for code in self.calls)

    def difference(self, other: "Count") -> dict[str, int]:
        """Return, for each function that is called more or less often than in ``other``, by how
        many frames.
        """
        difference = self._by_function()
        difference.subtract(other._by_function())
        return {function: frames for function, frames in difference.items() if frames}

    def _by_function(self) -> Counter[str]:
        return Counter(f"{code.co_filename.removeprefix(_PRODUCT)} {code.co_qualname}" for code in self.calls)


class StillLoop(uvloop.Loop):
    """The product's event loop, but its timers never run."""

    def call_later(self, _delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_later(_NEVER_S, callback, *args, context=context)

    def call_at(self, _when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return super().call_later(_NEVER_S, callback, *args, context=context)


class StillClock:
    """A clock that stands still, so that ``sleep`` never ends."""

    def now_s(self) -> float:
        return _NOW_S

    monotonic_s = now_s

    async def sleep(self, _seconds: float) -> None:
        await asyncio.get_running_loop().create_future()


class Inline(ThreadPoolExecutor):
    """Does work at once, in the caller's thread. So work of a start is done after some turns of the event
    loop.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - the caller gets it, as from a thread
            future.set_exception(error)
        return future


class Origin(asyncio.Protocol):
    """One connection of an S3 server of small objects.

    All connections together wait for ``together`` requests, and then answer them, so that the proxy gets the
    answers in one turn of the event loop.
    """

    together = 1
    _waiting: ClassVar[list[tuple[Any, bytes]]] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
            if len(self._received) < (stop := end + 4 + int(length or 0)):
                break
            self._received = self._received[stop:]
            self._waiting.append((self._transport, _answer(head)))
        if len(self._waiting) >= Origin.together:
            for transport, answer in self._waiting:
                transport.write(answer)
            self._waiting.clear()


def _answer(head: bytes) -> bytes:
    method, target, _ = head.split(b" ", 2)
    if target == b"/":
        body = b"<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>"
    else:
        body = target[-4:] * 32
    fields = (
        b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "%s"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT'
        b"\r\nContent-Type: application/octet-stream\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
    ) % (len(body), target[-4:])
    return fields + (b"" if method == b"HEAD" else body)


class Connection:
    """A client's connection to the proxy."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    async def open(cls, address: str) -> "Connection":
        host, _, port = address.rpartition(":")
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        return cls(sock)

    def send(self, data: bytes) -> None:
        """Send ``data``, and return when it has reached the proxy's end of the connection.

        If ``data`` was sent over several connections, the proxy then reads all of it in one turn of the event
        loop.
        """
        assert self._socket.send(data) == len(data)
        while struct.unpack("i", fcntl.ioctl(self._socket, termios.TIOCOUTQ, b"\0\0\0\0"))[0]:
            pass

    async def answer(self) -> tuple[str, bytes]:
        """Return the head of the next answer in lower case, and its body unchanged."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += await self._receive()
        start, _, body = data.partition(b"\r\n\r\n")
        head = start.decode().lower()
        if "transfer-encoding: chunked" in head:
            while not body.endswith(b"\r\n0\r\n\r\n"):
                body += await self._receive()
        else:
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            while len(body) < length:
                body += await self._receive()
        assert head.startswith("http/1.1 200 "), (head, body[:500])
        return head, body

    async def _receive(self) -> bytes:
        data = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20)
        assert data, "the proxy closed the connection"
        return data

    def close(self) -> None:
        self._socket.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def call(method: str, path: str, kind: str, body: bytes) -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


@contextmanager
def _profiled() -> Iterator[list[CodeType]]:
    """Record the calls of this thread. The garbage collector is off, because it would call finalizers."""
    gc.collect()
    gc.disable()
    try:
        with recorded() as calls:
            yield calls
    finally:
        gc.enable()


def _ours(calls: Sequence[CodeType]) -> list[CodeType]:
    return [code for code in calls if code.co_filename.startswith(_PRODUCT)]


async def _settle() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def count_requests(sent: dict[Connection, bytes], source: str = "") -> Count:
    """Send requests at once, and count their frames. ``source``: the x-shade-cache that all answers must
    have.
    """
    await _settle()
    with _profiled() as calls:
        for connection, request in sent.items():
            connection.send(request)
        answers = [await connection.answer() for connection in sent]
        await _settle()
    for head, _ in answers:
        assert not source or f"\r\nx-shade-cache: {source}\r\n" in f"{head}\r\n", head
    return Count(_ours(calls), len(sent))


async def count_calls(turns: Sequence[Sequence[Callable[[], None]]], requests: int) -> Count:
    """Call functions, and count the frames of ``requests`` requests. The calls of one turn follow each other
    without a turn of the event loop between them.
    """
    await _settle()
    with _profiled() as calls:
        for functions in turns:
            for function in functions:
                function()
            await _settle()
    return Count(_ours(calls), requests)


class _Flows:
    """Counts each flow against one proxy: first some rounds to warm up, then ``ROUNDS`` that are counted."""

    def __init__(self, s3: list[Connection], control: Connection) -> None:
        self._s3 = s3
        self._control = control

    async def all(self) -> dict[str, list[Count]]:
        # The misses come first, because the hits need the objects that they fetch.
        misses = await self._rounds(1, self._misses)
        first = await self._rounds(2, self._first_hit)
        hits = await self._rounds(2, self._hit)
        await self._register()
        return {
            "remembered hit": hits,
            "first hit": first,
            "miss": misses,
            "PUT of 10 KB": await self._rounds(2, self._upload),
            "POST of scores": await self._rounds(2, self._scores),
            # The first warm-up round fetches the objects, and the second one makes their page handles.
            "batch of 256": await self._rounds(3, self._batch),
        }

    async def _rounds(self, warm_up: int, flow: Callable[[int], Any]) -> list[Count]:
        return [await flow(number) for number in range(warm_up + ROUNDS)][warm_up:]

    async def _misses(self, number: int) -> Count:
        paths = [f"/b/{_missed(number * MISSES + place)}" for place in range(MISSES)]
        Origin.together = MISSES
        try:
            return await count_requests(dict(zip(self._s3, map(get, paths), strict=True)), "origin")
        finally:
            Origin.together = 1

    async def _first_hit(self, number: int) -> Count:
        return await count_requests({self._s3[0]: get(f"/b/{_missed(number)}")}, "ram")

    async def _hit(self, _number: int) -> Count:
        return await count_requests({self._s3[0]: get(f"/b/{_missed(0)}")}, "ram")

    async def _upload(self, _number: int) -> Count:
        body = bytes(UPLOADED_BYTES)
        return await count_requests({self._s3[0]: call("PUT", "/b/uploaded", _BYTES, body)}, "bypass")

    async def _register(self) -> None:
        lines = b"".join(
            b'{"bucket": "b", "key": "%s"}\n' % _sampled(place).encode() for place in range(BATCH)
        )
        for request in (
            call("PUT", "/v1/datasets/data", "application/x-ndjson", lines),
            call("PUT", "/v1/jobs/train", "application/json", msgspec.json.encode({"dataset": "data"})),
        ):
            self._control.send(request)
            await self._control.answer()

    async def _scores(self, number: int) -> Count:
        """Send binary scores of all samples, as the SDK does."""
        scores = [number + place / BATCH for place in range(BATCH)]
        body = struct.pack(f"<I{BATCH}I{BATCH}f", BATCH, *range(BATCH), *scores)
        return await count_requests({self._control: call("POST", "/v1/jobs/train/scores", _SCORES, body)})

    async def _batch(self, _number: int) -> Count:
        """Ask for all samples by binary ids, as the SDK does."""
        body = struct.pack(f"<{BATCH}I", *range(BATCH))
        return await count_requests(
            {self._control: call("POST", "/v1/batch?job=train&order=ready", _IDS, body)}
        )


def _missed(number: int) -> str:
    # With the hashes of these names, no hash table of the index (engine/index) doubles in a counted round.
    return f"missed/{number:04}"


def _sampled(number: int) -> str:
    return f"sampled/{number:04}"


def settings(directory: Path, origin_port: int, more: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Return settings of a proxy with its files in ``directory``, changed by ``more``.

    The proxy reads the origin's credentials from the variables ORIGIN_KEY and ORIGIN_SECRET.
    """
    overrides = {
        "s3.listen": "127.0.0.1:0",
        "control.listen": "127.0.0.1:0",
        "control.socket": "off",
        "origin.endpoint": f"http://127.0.0.1:{origin_port}",
        "origin.credentials.access_key_env": "ORIGIN_KEY",
        "origin.credentials.secret_key_env": "ORIGIN_SECRET",
        "cache.ram.path": str(directory / "ram"),
        "cache.ram.capacity": "64 MiB",
        "cache.disk.capacity": "0",
        "state.path": str(directory / "state"),
    }
    return Settings.load(None, [f"{name}={value}" for name, value in {**overrides, **more}.items()])


async def _counts(directory: Path) -> dict[str, list[Count]]:
    asyncio.get_running_loop().set_default_executor(Inline())
    server = await asyncio.get_running_loop().create_server(Origin, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = Proxy(settings(directory, port), clock=StillClock())
    await proxy.start()
    opened: list[Connection] = []
    try:
        opened += [await Connection.open(proxy.s3_address) for _ in range(MISSES)]
        opened.append(await Connection.open(proxy.control_address))
        return await _Flows(opened[:-1], opened[-1]).all()
    finally:
        for connection in opened:
            connection.close()
        await proxy.stop()
        server.close()


def count_flows(directory: Path) -> dict[str, list[Count]]:
    """Count every flow ``ROUNDS`` times, on a whole proxy in front of an S3 server.

    The proxy uses the interpreted lane and the interpreted form of answer heads.
    """
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=StillLoop) as runner:
        patch.setattr(compiled, "COMPILED", False)
        patch.setattr(heads, "COMPILED", False)
        patch.setenv("ORIGIN_KEY", "key")
        patch.setenv("ORIGIN_SECRET", "secret")
        return runner.run(_counts(directory))
