"""Clients of a proxy that will be killed. They read, overwrite and delete objects, and compare everything
that they read.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from shadeproxy_bench.reliability.crash.objects import BUCKET, FIXED_KEYS, KEYS, body_of
from shadeproxy_bench.reliability.crash.truth import Truth
from shadeproxy_bench.reliability.kit.link import Cut, Link
from shadeproxy_bench.requests import head_of

_TIMEOUT_S = 30.0
# Part of the proxy's error message for a write that was sent to the origin, but not answered. The origin may
# or may not have carried out such a write.
_UNKNOWN = b"so it may have carried out the request"
Span = tuple[int, int | None]
"""The bytes [start, stop) of an object. ``(-n, None)``: its last ``n`` bytes."""
_GONE = (OSError, Cut)
_PART_BYTES = 1_500
_PARTS = [
    (at + start * _PART_BYTES, at + stop * _PART_BYTES)
    for at in range(3_000, 30_000, 6_000)
    for start, stop in ((0, 1), (1, 2), (0, 2))
]
_PARTS_EACH = 3
"""Parts that are read again and again, so that the proxy stores them alone and answers from them. Of each
three, the third consists of the other two.
"""


class Connection:
    """One connection of a client to the S3 listener."""

    def __init__(self, port: int, truth: Truth, sources: Counter[str]) -> None:
        self._link = Link(("127.0.0.1", port), silence_s=_TIMEOUT_S)
        self._truth = truth
        self._sources = sources

    def close(self) -> None:
        self._link.close()

    def get(self, key: str, span: Span | None = None) -> None:
        """Read an object or a span of it, and compare the answer with the truth."""
        least = self._truth.least(key)
        self._link.send(_request("GET", key, _range_of(span)))
        self._judge(key, least, span)

    def get_all(self, keys: Sequence[str], span: Span | None = None) -> None:
        """Send the requests for many objects, or for the same bytes of each, at once. Compare all answers
        with the truth.
        """
        least = {key: self._truth.least(key) for key in keys}
        self._link.send(b"".join(_request("GET", key, _range_of(span)) for key in keys))
        for key in keys:
            self._judge(key, least[key], span)

    def write(self, key: str) -> None:
        """Write the next version of ``key``. In some versions the object does not exist; such a version is
        written by a DELETE.
        """
        version = self._truth.next_version(key)
        body = body_of(key, version)
        if body is None:
            self._link.send(_request("DELETE", key))
        else:
            self._link.send(_request("PUT", key, {"Content-Length": str(len(body))}) + body)
        answer = self._link.receive()
        if answer.status in {200, 204}:
            self._truth.written(key, version)
        elif answer.status != 503 and not (answer.status == 500 and _UNKNOWN in answer.document):
            self._truth.wrong.append(f"write of {key}: {answer.status}")

    def _judge(self, key: str, least: int, span: Span | None) -> None:
        answer = self._link.receive()
        source = answer.fields.get("x-shade-cache", "none")
        self._sources[f"{answer.status} {source}" if answer.status >= 400 else source] += 1
        how = f"{answer.status} from {source}"
        if answer.status == 404:
            self._truth.check(key, least, None, how=how)
        elif answer.status in {200, 206}:
            start, stop = span if answer.status == 206 and span is not None else (0, None)
            self._truth.check(key, least, answer.document, start=start, stop=stop, how=how)
        elif answer.status != 503 and not (answer.status == 416 and span is not None):
            self._truth.wrong.append(f"GET {key}: {answer.status} {answer.text}")


def _request(method: str, key: str, fields: Mapping[str, str] | None = None) -> bytes:
    return head_of(method, f"/{BUCKET}/{key}", [("Host", "localhost"), *(fields or {}).items()])


def _range_of(span: Span | None) -> dict[str, str]:
    if span is None:
        return {}
    start, stop = span
    return {"Range": f"bytes={start}" if stop is None else f"bytes={start}-{stop - 1}"}


class Crowd:
    """Clients that run in parallel until the proxy is gone or ``end`` is called. Each client writes keys of
    its own, and reads all keys.
    """

    def __init__(self, port: int, truth: Truth, seed: int, *, clients: int = 3) -> None:
        self.sources: Counter[str] = Counter()
        self.answers = 0
        self._over = threading.Event()
        self._port, self._truth = port, truth
        self._threads = [
            threading.Thread(target=self._work, args=(Random(f"{seed}/{n}"), KEYS[n::clients]), daemon=True)
            for n in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let the clients send no more requests, and wait until all clients have ended."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, rng: Random, own: tuple[str, ...]) -> None:
        connection = Connection(self._port, self._truth, self.sources)
        try:
            while not self._over.is_set():
                self._ask(connection, rng, own)
                self.answers += 1
        except _GONE:
            return
        finally:
            connection.close()

    def _ask(self, connection: Connection, rng: Random, own: tuple[str, ...]) -> None:
        draw = rng.random()
        key = rng.choice(KEYS if draw < 0.8 else FIXED_KEYS)
        if draw < 0.2:
            connection.write(rng.choice(own))
        elif draw < 0.23:
            connection.get(key, (-rng.randrange(1, 30_000), None))
        elif draw < 0.3:
            start = rng.randrange(30_000)
            connection.get(key, (start, start + rng.randrange(1, 20_000)))
        elif draw < 0.5:
            connection.get(key, rng.choice(_PARTS))
        else:
            connection.get(key)


def read_all(port: int, truth: Truth) -> Counter[str]:
    """Read some parts of every object, and then every object. Return the number of answers by source. The
    reads end early if the proxy ends.

    Many requests are sent at once on one connection. One round trip after another would take a second on a
    busy machine.
    """
    sources: Counter[str] = Counter()
    connection = Connection(port, truth, sources)
    try:
        for part in _PARTS[:_PARTS_EACH]:
            connection.get_all((*KEYS, *FIXED_KEYS), part)
        connection.get_all((*KEYS, *FIXED_KEYS))
    except _GONE:
        sources["gone"] += 1
    finally:
        connection.close()
    return sources
