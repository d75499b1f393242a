"""Clients that read and overwrite a few objects through one proxy, and check every byte that they read."""

import http.client
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

KEYS = 40
SIZE = 60_000


def body_of(key: str, version: int, size: int = SIZE) -> bytes:
    """Return the body of a version of an object. Every 32 bytes of it name the object and the version."""
    return f"{key}:{version:08d};".ljust(32, ".").encode() * (size // 32)


def version_of(key: str, body: bytes) -> int:
    """Return the version of an object that ``body`` is. Raises AssertionError if it is not one
    whole version.
    """
    version = int(body[len(key) + 1 : len(key) + 9])
    assert body == body_of(key, version, len(body))
    return version


@contextmanager
def connect(served) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(served.s3.removeprefix("http://"), timeout=20)
    try:
        yield connection
    finally:
        connection.close()


def ask(served, path: str, method: str = "GET", **headers: str):
    with connect(served) as connection:
        return get(connection, path, method, **headers)


def get(connection, path: str, method: str = "GET", **headers: str):
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def put(served, path: str, body: bytes) -> None:
    urllib.request.urlopen(urllib.request.Request(served.s3 + path, body, method="PUT"), timeout=20).close()


class Load:
    """Threads that read and threads that write. They check every byte of every complete answer."""

    def __init__(self, served, *, reading: int = 6, writing: int = 2) -> None:
        self.served, self.over = served, threading.Event()
        self.versions = Counter({str(n): 1 for n in range(KEYS)})
        self.read, self.failures, self.wrong = Counter(), 0, []
        for n in range(KEYS):
            put(served, f"/data/{n}", body_of(str(n), 1))
        jobs = [(self._read, n) for n in range(reading)] + [(self._write, n) for n in range(writing)]
        self.writing = writing
        self.threads = [threading.Thread(target=self._run, args=job) for job in jobs]
        for thread in self.threads:
            thread.start()

    def _run(self, work, number: int) -> None:
        rng = np.random.default_rng(number)
        while not self.over.is_set():
            try:
                # The kernel gives each connection to one of the proxy's processes, so new connections reach
                # all of them.
                with connect(self.served) as connection:
                    for _ in range(20):
                        if not self.over.is_set():
                            work(connection, number, rng)
            except (OSError, http.client.HTTPException):
                self.failures += 1
                time.sleep(0.02)
            except Exception as error:  # noqa: BLE001 - shown by the test
                self.wrong.append(repr(error)[:300])
                return

    def _read(self, connection, _number, rng) -> None:
        for _ in range(50):
            key = str(int(rng.integers(KEYS)))
            least = self.versions[key]
            first = int(rng.integers(SIZE // 64)) * 32
            ranged = rng.random() < 0.3
            fields = {"Range": f"bytes={first}-{first + 32 * 900 - 1}"} if ranged else {}
            status, headers, body = get(connection, f"/data/{key}", **fields)
            assert status in {200, 206, 503}, status
            if status != 503:
                assert len(body) in {SIZE, 32 * 900}
                assert version_of(key, body) >= least, f"stale {key}"
                self.read[headers["x-shade-cache"], headers["x-amz-request-id"][:4]] += 1

    def _write(self, connection, number, rng) -> None:
        key = str(int(rng.integers(KEYS // self.writing)) * self.writing + number)
        version = self.versions[key] + 1
        connection.request("PUT", f"/data/{key}", body_of(key, version))
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            self.versions[key] = version
        time.sleep(0.002)

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(30)
        assert self.wrong == []
