"""The resources of one process: sockets, threads, circuit breakers. They are never pickled, and a forked
child never uses those of its parent.

Only this module calls urllib3. It turns urllib3's exceptions into ``Unreachable``, and retries nothing.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NewConnectionError, ProtocolError
from urllib3.exceptions import TimeoutError as HTTPTimeout

from shadeproxy_sdk.channel import MAX_CONNECT_S, Channels
from shadeproxy_sdk.circuit_breaker import CircuitBreaker, CircuitBreakers, Outage
from shadeproxy_sdk.errors import Broken, Silent, Unreachable
from shadeproxy_sdk.owners import Owners
from shadeproxy_sdk.read_threads import ReadThreads
from shadeproxy_sdk.segments import Segments

_WITH_BODY = frozenset({200, 206})
"""Statuses of answers that have a body, even if it is empty. So they say how long it is."""


class Answer(NamedTuple):
    """A complete answer. ``body``: as long as its Content-Length or its chunks said, and not decompressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Offers:
    """The proxy's offers, from ``GET /v1/info``. ``batch``, ``locate``: whether it has these calls.
    ``socket``: the path of its Unix socket. ``owners``: whether several proxies share their pages, so that
    each can be asked for the samples that it caches.
    """

    batch: bool
    locate: bool
    socket: str | None
    owners: bool = False


class TransportState:
    """This process's knowledge of the proxy's ways to deliver samples. ``proven``: True if the last attempt
    to read the cache's files succeeded. ``by_id``: for each manifest, by name and digest, a breaker; it is
    open while the proxy does not know that manifest's samples by id.
    """

    def __init__(self, pause_s: float) -> None:
        self.batch = CircuitBreaker(pause_s)
        self.locate = CircuitBreaker(pause_s)
        self.by_id = CircuitBreakers(pause_s)
        self.channels = Channels()
        self.segments = Segments()
        self.offers: Offers | None = None
        self.proven = False

    def close(self) -> None:
        """Close connections and files."""
        self.channels.close()
        self.segments.close()


class _PlainConnection(HTTPConnection):
    """A connection that soon gives up a host that does not answer. urllib3 has one time for connecting and
    sending, but sending may take longer: a proxy without room reads a long body only when its turn comes.
    """

    def connect(self) -> None:
        send_s = self.timeout
        assert send_s is not None
        self.timeout = min(send_s, MAX_CONNECT_S)
        super().connect()
        self.timeout = send_s
        self.sock.settimeout(send_s)


class _VerifiedConnection(_PlainConnection, HTTPSConnection):
    """The same for TLS. Its handshake is part of connecting."""


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _VerifiedPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _VerifiedConnection


class Connections:
    """The pooled keep-alive connections of this process, and its read threads, at most ``concurrency``.
    ``owners``: the proxies that cache the samples of datasets.
    """

    def __init__(self, *, concurrency: int, pause_s: float) -> None:
        self.pid = os.getpid()
        self.control_breaker = CircuitBreaker(pause_s)
        self.s3_breaker = CircuitBreaker(pause_s)
        self.transport = TransportState(pause_s)
        self.owners = Owners()
        self._others: dict[tuple[str, str], Connections] = {}
        self._pause_s = pause_s
        self._concurrency = concurrency
        self._pool = urllib3.PoolManager(num_pools=8, maxsize=concurrency, retries=False)
        self._pool.pool_classes_by_scheme = {"http": _PlainPool, "https": _VerifiedPool}
        self._executor: ReadThreads | None = None
        self._lock = threading.Lock()

    def follow(self, outage: Outage) -> None:
        """Begin a worker with what its parent knows of a proxy that does not answer. The training
        process often finds that first, because it sends something every second. But it hardly uses the S3
        listener, which may answer all the same, so the first read tries that one.
        """
        for breaker in (self.control_breaker, self.s3_breaker, self.transport.batch):
            breaker.follow(outage)
        self.s3_breaker.hurry(0.0)

    @property
    def executor(self) -> ReadThreads:
        """The threads that fetch samples of a batch. They are made on first use."""
        with self._lock:
            if self._executor is None:
                self._executor = ReadThreads(self._concurrency)
            return self._executor

    def other(self, node: str, url: str) -> "Connections":
        """Return the connections to another proxy of the cluster: ``node``, at ``url``."""
        with self._lock:
            found = self._others.get((node, url))
            if found is None:
                found = self._others[node, url] = Connections(concurrency=1, pause_s=self._pause_s)
            return found

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout_s: float,
    ) -> Answer:
        """Send one request and return the complete answer. Raises Unreachable: Silent when nothing came in
        time, Broken when another attempt may succeed.

        ``timeout_s`` bounds each wait for bytes. If the body is shorter than its Content-Length, or the
        answer has neither length nor chunks, raises Broken, because the body could be a truncated sample.
        """
        try:
            answer = self._pool.urlopen(
                method,
                url,
                redirect=False,
                headers=headers,
                body=body,
                timeout=timeout_s,
                retries=False,
                decode_content=False,
                enforce_content_length=True,
            )
        except NewConnectionError as error:
            raise Unreachable(_cause(error)) from None
        except HTTPTimeout:
            raise Silent(f"no answer within {timeout_s:g} s") from None
        except ProtocolError as error:
            raise Broken(f"connection broken: {_cause(error)}") from None
        except HTTPError as error:
            raise Unreachable(_cause(error)) from None
        except MemoryError:
            raise Unreachable("there is no memory for an answer as long as this one is said to be") from None
        # If the connection ended within the head, the body seems to be empty.
        if (answer.data or answer.status in _WITH_BODY) and not _is_framed(answer.headers):
            raise Broken("the answer has neither Content-Length nor chunks, so its end cannot be checked")
        return Answer(answer.status, answer.headers, answer.data)

    def close(self) -> None:
        """Close sockets and end threads."""
        with self._lock:
            executor, self._executor = self._executor, None
            others, self._others = self._others, {}
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)
        self._pool.clear()
        self.transport.close()
        for other in others.values():
            other.close()


def _is_framed(headers: Mapping[str, str]) -> bool:
    """Return whether the answer with ``headers`` says how long its body is."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return True
    # A field that was sent twice has both values.
    return all(length.strip().isdecimal() for length in headers.get("content-length", "").split(","))


def _cause(error: BaseException) -> str:
    """Return the innermost text of ``error``, because urllib3 wraps the operating system's error twice."""
    inner = error.__cause__ or error.__context__
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror.lower()
    return str(error.args[-1]) if error.args else type(error).__name__
