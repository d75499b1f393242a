"""A worker's fast lane beside the coordinator, in one process."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from types import SimpleNamespace

from shadeproxy.api.s3 import Authenticator, FastLane
from shadeproxy.api.s3.compiled import compiled_worker_hits
from shadeproxy.api.s3.relay import WorkerProtocol
from shadeproxy.api.s3.sender import ENCRYPTED
from shadeproxy.app.worker_access import SharedReadsAuthorizer
from shadeproxy.engine.index.columns import Share
from shadeproxy.engine.rules import Rules
from shadeproxy.engine.worker_reads import TierFiles, WorkerReads
from shadeproxy.telemetry.requests import RequestCounts
from tests.support.s3.clients import CLIENTS
from tests.support.s3.compiled import ID, heads


class Sink:
    """A writer on an encrypted connection, which records the bytes sent."""

    def __init__(self):
        self.sent = b""

    @property
    def transport(self):
        return self

    def open(self):
        return ENCRYPTED

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.sent += data

    def writelines(self, pieces):
        self.sent += b"".join(pieces)


class Beside:
    """The reads of a worker of ``proxy``, and a lane over them whose request cache can learn ``heads``."""

    def __init__(self, proxy, share, *, is_shared_cache=False, can_wait=False, longest=None):
        self.proxy, self.share = proxy, share
        self.reader = WorkerReads(
            Share(os.dup(share.descriptor)),
            [
                TierFiles(m.tier.path, m.tier.claim.store_id, m.source, can_wait)
                for m in proxy.engine.cache.media
            ],
            rules=Rules(()),
            clock=proxy.clock,
            page_size=proxy.engine.page_size,
            on_flush=lambda *_: None,
            longest=longest,
            is_elsewhere=(lambda _ref: False) if is_shared_cache else None,
        )
        self.requests = SimpleNamespace(on_request=lambda **_: None, on_job=lambda _job: None)
        authorizer = SharedReadsAuthorizer(
            self.reader,
            Authenticator(CLIENTS, anonymous=True, clock=proxy.clock),
            observer=self.requests,
            log=None,
            base_domains=("h", "s3.local"),
        )
        self.counts = RequestCounts()
        self.lane = FastLane(
            self.reader,
            authorizer,
            clock=proxy.clock,
            jobs=self.requests,
            counts=self.counts,
            shared=self.reader,
        )
        self.hits = compiled_worker_hits(self.lane._memory, self.reader)

    def learn(self):
        for raw in heads(self.proxy):
            for _ in range(3):
                self.lane.answer(raw, Sink())

    def compiled(self, raw):
        return self._tell(self.hits.answer, raw)

    def interpreted(self, raw):
        return self._tell(self.lane._memory.answer, raw)

    def _tell(self, answer, raw):
        self.reader.flush()
        sink = Sink()
        done = answer(raw, sink)
        rows = bytes(self.reader.access_log.rows)
        assert bool(done) == bool(sink.sent) == bool(rows)
        return (ID.sub(b"", sink.sent), rows) if done else None


@asynccontextmanager
async def serving(beside, *, compiled=True, send_bytes=0, tls=None, held=None):
    """Yield the port of a worker of ``beside.proxy``, in this process."""

    async def connect(protocol, _peer):
        await asyncio.get_running_loop().create_connection(lambda: protocol, "127.0.0.1", beside.proxy.port)

    base = beside.lane.worker_protocol(WorkerProtocol) if compiled else WorkerProtocol
    assert (base is not WorkerProtocol) is compiled
    listener, connections = socket.create_server(("127.0.0.1", 0)), set()
    if send_bytes:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    server = await asyncio.get_running_loop().create_server(
        lambda: base(beside.lane, connect, connections, keepalive_s=60.0, held=held), sock=listener, ssl=tls
    )
    try:
        yield listener.getsockname()[1]
    finally:
        server.close()
        while connections:
            await asyncio.sleep(0.001)
