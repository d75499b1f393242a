"""The cluster's log in a Redis or Valkey server. No other module imports the redis library.

All keys of a cluster begin with ``sp:{name}:``, so that they lie in one hash slot of the server.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from shadeproxy.cluster import redis_scripts
from shadeproxy.cluster.log import (
    BLOB_BYTES,
    BLOB_S,
    NO_VIEW,
    Beat,
    BeatAnswer,
    Event,
    NodeRecord,
    Seat,
    ViewId,
    ViewRecord,
    digest_of,
)
from shadeproxy.core.errors import ClusterUnavailable
from shadeproxy.telemetry.counters import ClusterCounters

_STREAM_EVENTS = 100_000
_SCORE_EVENTS = 4_000
_SCORE_STREAM_S = 3600
_READ_EVENTS = 500
_LONG_SCORES_S, _LONG_BYTES = 900, 32 * 1024
_HANDLE_CLOSED: Any = RuntimeError
"""uvloop raises this error for a write to a connection that was reset after it was taken from the pool.
``Retry`` accepts the class as well, although its types do not say so.
"""
_ODD = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""The errors of code that reads an answer in which a value has another type or form than expected."""
_seats = msgspec.msgpack.Decoder(list[Seat])


class RedisLog:
    """A cluster's log at a Redis or Valkey server. ``url``: ``redis://`` or ``rediss://``. ``timeout_s``
    bounds every call. ``ca_file``: file with the certificate of the authority that signed the server's; "" to
    trust the authorities of the system.
    """

    def __init__(
        self, url: str, cluster: str, *, password: str = "", ca_file: str = "", timeout_s: float = 1.0
    ) -> None:
        self._timeout_s = timeout_s
        self.counters = ClusterCounters()
        trusted: dict[str, Any] = {"ssl_ca_certs": ca_file} if ca_file else {}
        self._prefix = f"sp:{{{cluster}}}:"
        self._redis: Redis = Redis.from_url(
            url,
            protocol=2,
            socket_connect_timeout=timeout_s,
            socket_timeout=None,
            socket_keepalive=True,
            # Otherwise, for each new connection, the library would read its own version from the disk, in the
            # event loop.
            driver_info=None,
            # The client finds that the server has closed a connection only when it uses the connection. It
            # then connects again at once.
            retry=Retry(NoBackoff(), 1, (RedisConnectionError, _HANDLE_CLOSED)),
            password=password or None,
            **trusted,
        )
        self._command: Callable[..., Awaitable[Any]] = self._redis.execute_command
        self._address = _address(self._redis)
        self._state = self._prefix + "state"
        self._names = self._prefix + "names"
        script = self._redis.register_script
        self._beat, self._open = script(redis_scripts.BEAT), script(redis_scripts.OPEN)
        self._retire, self._propose = script(redis_scripts.RETIRE), script(redis_scripts.PROPOSE)
        self._forget, self._append = script(redis_scripts.FORGET), script(redis_scripts.APPEND)
        self._peek = script(redis_scripts.PEEK)
        self._claim, self._release = script(redis_scripts.CLAIM), script(redis_scripts.RELEASE)
        self._keep = script(redis_scripts.KEEP)

    async def peek(self) -> ViewRecord:
        view: ViewRecord = await self._run(self._peek, self._state, [], _newest)
        return view

    async def beat(self, beat: Beat) -> BeatAnswer:
        acked = beat.acked or ViewId("", 0)
        fresh_inc = secrets.token_hex(8)
        arguments = [beat.node, beat.boot, acked.inc, acked.number, fresh_inc, beat.inc, beat.kept]
        answer: BeatAnswer = await self._run(self._beat, self._state, arguments, _beat_answer)
        return answer

    async def open(self, inc: str) -> None:
        await self._run(self._open, self._state, [inc])

    async def retire(self, inc: str, node: str, count: int) -> bool:
        retired: bool = await self._run(self._retire, self._state, [inc, node, count])
        return retired

    async def propose(self, base: ViewId, seats: Sequence[Seat], *, kept: str = "") -> ViewId | None:
        ids = " ".join(seat.node for seat in seats)
        arguments = [base.inc, base.number, msgspec.msgpack.encode(list(seats)), ids, kept]
        number = await self._run(self._propose, self._state, arguments, int)
        return ViewId(base.inc, number) if number else None

    async def forget(self, inc: str, node: str) -> None:
        await self._run(self._forget, self._state, [inc, node])

    async def append(self, stream: str, body: bytes) -> str:
        scores = stream.startswith("s:")
        length, ttl_s = (_SCORE_EVENTS, _SCORE_STREAM_S) if scores else (_STREAM_EVENTS, 0)
        # So many long events would take a gigabyte. Proxies that join need those since the last snapshot.
        keep_s = _LONG_SCORES_S if scores and len(body) > _LONG_BYTES else ""
        arguments = [length, body, ttl_s, keep_s]
        return str(await self._run(self._append, self._prefix + stream, arguments, bytes.decode))

    async def read(self, after: Mapping[str, str], wait_s: float) -> list[Event]:
        if not after:
            return []
        keys = [self._prefix + stream for stream in after]
        block = ("BLOCK", max(1, round(wait_s * 1000))) if wait_s > 0 else ()
        async with self._bounded(wait_s):
            answer = await self._command(
                "XREAD", "COUNT", _READ_EVENTS, *block, "STREAMS", *keys, *after.values()
            )
            return [
                Event(key.decode().removeprefix(self._prefix), position.decode(), fields[b"e"])
                for key, entries in answer or ()
                for position, fields in entries
            ]

    async def claim(self, name: str, value: bytes, *, instead_of: bytes | None = None) -> bytes:
        arguments = [name, value, int(instead_of is not None), instead_of or b""]
        value_now: bytes = await self._run(self._claim, self._names, arguments, _bytes)
        return value_now

    async def release(self, name: str, value: bytes) -> bool:
        released: bool = await self._run(self._release, self._names, [name, value])
        return released

    async def names(self) -> dict[str, bytes]:
        async with self._bounded():
            names: dict[bytes, bytes] = await self._command("HGETALL", self._names)
            return {name.decode(): value for name, value in names.items()}

    async def put_blob(self, digest: str, data: bytes, keep_s: int = BLOB_S) -> None:
        assert len(data) <= BLOB_BYTES
        async with self._bounded():
            await self._command("SET", f"{self._prefix}b:{digest}", data, "EX", keep_s)

    async def get_blob(self, digest: str) -> bytes | None:
        async with self._bounded():
            data = await self._command("GETEX", f"{self._prefix}b:{digest}")
            # To compute the digest of more bytes would hold up the event loop.
            fits = data is not None and len(data) <= BLOB_BYTES and digest_of(data) == digest
            return data if fits else None

    async def keep_blobs(self, digests: Collection[str], keep_s: int = BLOB_S) -> bool:
        keys = [f"{self._prefix}b:{digest}" for digest in dict.fromkeys(digests)]
        async with self._bounded():
            return int(await self._keep(keys=keys, args=[keep_s])) == len(keys)

    async def close(self) -> None:
        async with self._bounded():
            await self._redis.aclose()

    async def _run(
        self, script: Any, key: str, arguments: list[object], form: Callable[[Any], Any] = bool
    ) -> Any:
        """Run a script, and return what ``form`` makes of its answer."""
        async with self._bounded():
            return form(await script(keys=[key], args=arguments))

    @asynccontextmanager
    async def _bounded(self, wait_s: float = 0.0) -> AsyncIterator[None]:
        """Bound and count a call to the server. Raise ClusterUnavailable if it fails in any way."""
        counters, began_s = self.counters, time.monotonic()
        counters.engine_requests += 1
        try:
            async with asyncio.timeout(wait_s + self._timeout_s):
                yield
        except TimeoutError:
            counters.engine_errors += 1
            raise ClusterUnavailable(f"{self._address} gave no answer in {self._timeout_s:g} s") from None
        except (RedisError, OSError, _HANDLE_CLOSED) as error:
            counters.engine_errors += 1
            raise ClusterUnavailable(f"{self._address}: {error}") from error
        except _ODD as error:
            # Other programs may write to this server too, or it may be no Redis. Such an answer must fail
            # only this call, not those after it.
            counters.engine_errors += 1
            raise ClusterUnavailable(
                f"the state of the cluster in {self._address} is damaged: {error}"
            ) from error
        finally:
            if not wait_s:  # Do not time calls that wait for an event: most of their time is that wait.
                counters.engine_s += time.monotonic() - began_s


def _beat_answer(answer: Any) -> BeatAnswer:
    """Return what the script answered to a beat. Raises ClusterUnavailable, or another error if a value has a
    wrong form.
    """
    inc, time_s = answer[0].decode(), answer[2] / 1000
    if answer[1]:
        return BeatAnswer(inc=inc, closed=answer[1] == 1, seat_kept=answer[1] == 2, time_s=time_s)
    _, _, _, token, taken, forgotten, number, seats, settled_number, settled_seats, records = answer
    return BeatAnswer(
        inc=inc,
        time_s=time_s,
        token=token.decode(),
        taken=bool(taken),
        forgotten=bool(forgotten),
        view=_view(number, seats),
        settled=_view(settled_number, settled_seats),
        nodes=tuple(
            sorted(
                NodeRecord(node.decode(), count, acked, bool(retired), bool(gone))
                for node, count, acked, retired, gone in records
            )
        ),
    )


def _bytes(answer: Any) -> bytes:
    """Return an answer that must be bytes. Raises TypeError for any other: ``bytes(5)`` would be zeros."""
    joined: bytes = b"" + answer
    return joined


def _newest(answer: Any) -> ViewRecord:
    number, seats = answer
    return _view(int(number or 0), seats or b"")


def _view(number: int, seats: bytes) -> ViewRecord:
    if not number:
        return NO_VIEW
    try:
        return ViewRecord(number, tuple(_seats.decode(seats)))
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"the view in the log is damaged: {error}") from error


def _address(redis: Redis) -> str:
    """Return host and port, or the socket's path; never the password of the URL."""
    where = redis.connection_pool.connection_kwargs
    return str(where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}")
