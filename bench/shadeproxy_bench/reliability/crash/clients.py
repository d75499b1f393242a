"""Clients of a proxy that will be killed: they read, overwrite and delete, and compare all that they get."""

import http.client
import socket
import threading
from collections import Counter
from random import Random
from typing import BinaryIO

from shadeproxy_bench.reliability.crash.objects import BUCKET, FIXED_KEYS, KEYS, body_of
from shadeproxy_bench.reliability.crash.truth import Truth

_TIMEOUT_S = 30.0
# The origin was killed after a write was sent to it: whether it was carried out is not known.
_UNKNOWN = b"so it may have carried out the request"
_GONE = (OSError, http.client.HTTPException)


class Connection:
    """One connection of a client to the S3 listener."""

    def __init__(self, port: int, truth: Truth, sources: Counter[str]) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        self._truth = truth
        self._sources = sources

    def close(self) -> None:
        self._http.close()

    def get(self, key: str, span: tuple[int, int] | None = None) -> None:
        """Read an object, or the bytes [start, stop) of it, and compare."""
        least = self._truth.least(key)
        fields = {} if span is None else {"Range": f"bytes={span[0]}-{span[1] - 1}"}
        self._http.request("GET", f"/{BUCKET}/{key}", headers=fields)
        answer = self._http.getresponse()
        body = answer.read()
        source = answer.headers.get("x-shade-cache", "none")
        self._sources[f"{answer.status} {source}" if answer.status >= 400 else source] += 1
        how = f"{answer.status} from {source}"
        if answer.status == 404:
            self._truth.check(key, least, None, how=how)
        elif answer.status in {200, 206}:
            start, stop = span if answer.status == 206 and span is not None else (0, None)
            self._truth.check(key, least, body, start=start, stop=stop, how=how)
        elif answer.status not in {416, 503}:
            self._truth.wrong.append(f"GET {key}: {answer.status} {body[:300]!r}")

    def write(self, key: str) -> None:
        """Write the next version."""
        version = self._truth.next_version(key)
        body = body_of(key, version)
        self._http.request("PUT" if body is not None else "DELETE", f"/{BUCKET}/{key}", body=body)
        answer = self._http.getresponse()
        said = answer.read()
        if answer.status in {200, 204}:
            self._truth.written(key, version)
        elif answer.status != 503 and not (answer.status == 500 and _UNKNOWN in said):
            self._truth.wrong.append(f"write of {key}: {answer.status}")


class Crowd:
    """Clients side by side until the proxy is gone or ``end`` is called."""

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
        """Send no more requests. Return when the last one is over."""
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
        elif draw < 0.4:
            start = rng.randrange(30_000)
            connection.get(key, (start, start + rng.randrange(1, 20_000)))
        else:
            connection.get(key)


def read_all(port: int, truth: Truth) -> Counter[str]:
    """Read every object once, and return a count by source. It ends early when the proxy does.

    All requests leave at once on one connection: a round trip each would cost a busy machine a second.
    """
    sources: Counter[str] = Counter()
    keys = (*KEYS, *FIXED_KEYS)
    least = {key: truth.least(key) for key in keys}
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as connection:
            connection.sendall(
                b"".join(f"GET /{BUCKET}/{key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for key in keys)
            )
            with connection.makefile("rb") as answers:
                for key in keys:
                    status, source, body = _read_answer(answers)
                    sources[f"{status} {source}" if status >= 400 else source] += 1
                    if status in {200, 404}:
                        truth.check(
                            key, least[key], body if status == 200 else None, how=f"{status} from {source}"
                        )
                    elif status != 503:
                        truth.wrong.append(f"GET {key}: {status} {body[:300]!r}")
    except _GONE:
        sources["gone"] += 1
    return sources


def _read_answer(answers: BinaryIO) -> tuple[int, str, bytes]:
    """Return status, source and body. Raises ConnectionError when the answer does not come whole."""
    first = answers.readline()
    fields = dict(line.lower().rstrip().split(b": ", 1) for line in iter(answers.readline, b"\r\n") if line)
    length = int(fields.get(b"content-length", b"0"))
    body = answers.read(length)
    if not first.endswith(b"\r\n") or len(body) < length:
        raise ConnectionError("it does not come whole")
    return int(first.split()[1]), fields.get(b"x-shade-cache", b"none").decode(), body
