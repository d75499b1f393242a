"""The compiled and the interpreted form of the request cache, side by side."""

import re
from urllib.parse import unquote

from shadeproxy.api.s3.compiled import compiled_hits
from shadeproxy.api.s3.sender import ENCRYPTED
from tests.support.s3.clients import SDK, signed
from tests.support.s3.lane import request

ID = re.compile(rb"(?<=x-amz-request-id: )[0-9A-F]{16}")


JOB = "x-shade-job: j;epoch=1;rank=0"


class Sink:
    """A sender on an encrypted connection. It records the bytes sent."""

    descriptor = ENCRYPTED

    def __init__(self):
        self.sent = b""

    @property
    def transport(self):
        return self

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.sent += data

    def writelines(self, pieces):
        self.sent += b"".join(pieces)

    def send(self, head, *slices):
        self.writelines((head, *(file_slice.pin() for file_slice in slices)))


class Both:
    """Gives the answers of both forms, compiled and interpreted, from the request cache of one lane."""

    def __init__(self, proxy, clock=None):
        """Take the request cache of the proxy's lane. ``clock`` is its clock; by default, it is
        the proxy's.
        """
        self._memory, self._access_log = proxy.lane._memory, proxy.engine.access_log
        engine, clock = proxy.engine, proxy.clock if clock is None else clock
        self._memory.now_s = clock.now_s
        self.hits = compiled_hits(self._memory, engine, engine.hits, otherwise=lambda *_: None, clock=clock)
        self._compiled = self.hits.answer

    def _tell(self, answer, raw):
        self._access_log.flush_to_statistics()
        sink = Sink()
        done = answer(raw, sink)
        rows = bytes(self._access_log.rows)
        assert bool(done) == bool(sink.sent) == bool(rows)
        return (ID.sub(b"", sink.sent), rows) if done else None

    def interpreted(self, raw):
        return self._tell(self._memory.answer, raw)

    def compiled(self, raw):
        return self._tell(self._compiled, raw)


def heads(proxy, *keys):
    now_s = proxy.clock.now_s()
    for key in keys or ("k", "big", "a%20b"):
        yield request(f"/b/{key}", close=False)
        yield request(f"/b/{key}", *SDK, JOB, close=False)
        yield request(f"/b/{key}", "x-amz-checksum-mode: ENABLED", close=False)
        yield request(f"/b/{key}", "Range: bytes=3-7", close=False)
        yield request(f"/b/{key}", *SDK, "range: bytes=2-500", JOB, close=False)
        yield signed(f"/b/{key}", "Range: bytes=1-20000", now_s=now_s)
        yield signed(f"/b/{key}", extra=(("range", "bytes=5-90000"),), now_s=now_s)
        yield signed(f"/b/{key}", now_s=now_s)
        yield signed(f"/b/{key}", key="temporary", secret="temporary-secret", token="a-token", now_s=now_s)
        yield signed(f"/b/{key}", key="stranger", secret="unknown", now_s=now_s)
        yield signed(f"/b/{key}", "Range: bytes=1-5", key="stranger", secret="unknown", now_s=now_s)
        yield from _matching(proxy, key, now_s)
    etag = _etag(proxy, "two")
    yield request("/b/two", f"If-Match: {etag}", "Range: bytes=65530-65540", close=False)
    for value in ("0-0", "65530-65540", "65536-65536", "70000-200000"):
        yield request("/b/two", f"Range: bytes={value}", JOB, close=False)


def _matching(proxy, key, now_s):
    """Yield requests with an If-Match for the cached version. In some requests, the signature covers this
    field.
    """
    etag, part = _etag(proxy, key), ("range", "bytes=3-9000")
    yield request(f"/b/{key}", f"If-Match: {etag}", close=False)
    yield request(f"/b/{key}", *SDK, f"if-match: {etag}", "Range: bytes=3-7", JOB, close=False)
    yield signed(f"/b/{key}", f"If-Match: {etag}", now_s=now_s)
    yield signed(f"/b/{key}", extra=(("if-match", etag),), now_s=now_s)
    yield signed(f"/b/{key}", extra=(("if-match", etag), part), now_s=now_s)
    yield signed(f"/b/{key}", "Range: bytes=1-5", extra=(("if-match", etag),), now_s=now_s)


def _etag(proxy, key):
    return proxy.origin.buckets["b"][unquote(key)].meta.etag
