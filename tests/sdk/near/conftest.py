"""A fake proxy that answers batch and locate calls as docs/protocol.md says. A test can add faults to the
answers.
"""

import itertools
import json
import socket
import socketserver
import struct
import threading
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest

import shadeproxy_sdk as shade

FRAME = struct.Struct("<IHBBQ")
RECORD = struct.Struct("<IHHQQQQB7x64s")
END = 0xFFFFFFFF
IDS = "application/vnd.shadeproxy.ids"
PIECE = 4
"""Bytes of a page, so small that most samples have several pages."""


class Segment:
    """A segment file. Each record has a body, and before it a header of 64 bytes that is different in every
    record.
    """

    serial = itertools.count(1)

    def __init__(self, path):
        self.path = path
        path.unlink(missing_ok=True)
        path.touch()

    def add(self, body):
        header = next(self.serial).to_bytes(8, "little") * 8
        start = self.path.stat().st_size
        with self.path.open("ab") as file:
            file.write(header + body)
        return start, header, len(body)

    def erase(self, start, length):
        """Erase a record as a tier does: first set the header to zeros, then overwrite the body."""
        with self.path.open("r+b") as file:
            file.seek(start)
            file.write(bytes(64) + b"\xee" * length)


class Near:
    """The batch and locate calls of ``proxy``. Objects that were given to ``keep`` are cached in real
    files.
    """

    def __init__(self, proxy, directory):
        self.proxy = proxy
        self.directory = directory
        self.batches = []
        self.locates = []
        self.headers = []
        self.statuses = {}
        self.mangle = lambda body: body
        self.mangle_locate = lambda body: body
        self.evict_after_locate = set()
        self.chunk = 1 << 16
        self.in_order = False
        self.cuts = []
        self.unix = None
        self.refusals = {}
        self.refuse_digests = False
        self.restart()
        proxy.offers |= {"batch": True, "locate": True}
        proxy.more |= {"batch": self.batch, "locate": self.locate}

    @property
    def bodies(self):
        return [self.proxy.objects["train", key] for key in self.proxy.keys("train", "")]

    def restart(self):
        """Begin with an empty cache, in new files that have the old names."""
        self.kept = {}
        self.segments = [Segment(self.directory / f"{number}.seg") for number in range(2)]

    def keep(self, *keys):
        for key in keys:
            body = self.proxy.objects["train", key]
            pieces = [body[i : i + PIECE] for i in range(0, len(body), PIECE)]
            segment = itertools.cycle(range(2))
            self.kept[key] = [(number := next(segment), *self.segments[number].add(p)) for p in pieces]

    def keep_all(self):
        self.keep(*(key for _, key in self.proxy.objects))

    def evict(self, key):
        for number, start, _, length in self.kept.pop(key):
            self.segments[number].erase(start, length)

    def listen(self, path):
        """Serve the same calls on a Unix socket too."""
        near = self

        class Handler(self.proxy.server.RequestHandlerClass):
            disable_nagle_algorithm = False

            def do(self):
                near.unix_calls += 1
                super().do()

            do_POST = do  # noqa: N815 (the name that http.server calls)

        self.unix_calls = 0
        self.unix = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self.unix.daemon_threads = True
        self.unix.fake = self.proxy
        threading.Thread(target=self.unix.serve_forever, args=(0.01,), daemon=True).start()
        self.proxy.offers["socket"] = str(path)

    def close(self):
        if self.unix is not None:
            self.unix.shutdown()
            self.unix.server_close()

    # ------------------------------------------------------------------ calls

    def ask(self, handler, body, kind):
        """Return the items of the request. Return None if the call was refused."""
        request = json.loads(body) if handler.headers["Content-Type"] != IDS else self.named(handler, body)
        (self.batches if kind == "batch" else self.locates).append(request)
        self.headers.append(dict(handler.headers.items()))
        refusal = self.refusals.get(kind)
        if refusal is None and request.get("job") not in {None, *self.proxy.jobs}:
            refusal = 404, "unknown_name"
        if "digest" in request and self.refuse_digests:
            refusal = 400, "invalid_request"
        elif "items" not in request:
            refusal = 404, "unknown_name"
        elif "digest" in request and request["digest"] != self.proxy.digest(request["dataset"]):
            refusal = 409, "conflict"
        if refusal:
            status, code = refusal
            told = {"error": {"code": code, "message": "told so", "hint": "change it"}}
            handler.reply(status, json.dumps(told).encode())
            return None
        return [
            (item["bucket"], item["key"], item.get("offset", 0), item.get("length"))
            for item in request["items"]
        ]

    def named(self, handler, body):
        """Turn a call by sample ids into a call by items. Keep the fields about the dataset."""
        query = dict(parse_qsl(urlsplit(handler.path).query))
        entries = self.proxy.datasets.get(query["dataset"])
        if entries is None:
            return query
        names = ("bucket", "key", "offset", "length")
        items = [dict(zip(names, entries[i], strict=True)) for i in np.frombuffer(body, "<u4").tolist()]
        numbers = {name: int(query[name]) for name in ("epoch", "rank") if name in query}
        return {**query, **numbers, "items": items}

    def batch(self, handler, body):
        items = self.ask(handler, body, "batch")
        if items is None:
            return
        frames = []
        for index, (bucket, key, offset, length) in enumerate(items):
            data = self.proxy.objects.get((bucket, key))
            status = self.statuses.get(key, 200 if data is not None else 404)
            if status == 200 and length is not None:
                data = data[offset : offset + length]
                status = 200 if len(data) == length else 416
            if status != 200:
                data = json.dumps({"code": "x", "message": "m", "hint": "h"}).encode()
            frames.append(FRAME.pack(index, status, 0, 0, len(data)) + data)
        if not self.in_order:
            frames.reverse()  # the client asks for order "ready", so any order is right
        frames.append(FRAME.pack(END, 0, 0, 0, len(items)))
        whole = self.mangle(b"".join(frames))
        handler.send_response(200)
        handler.send_header("Content-Type", "application/vnd.shadeproxy.batch")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        cut = self.cuts.pop(0) if self.cuts else None
        for start in range(0, len(whole), self.chunk):
            piece = whole[start : start + self.chunk]
            handler.wfile.write(b"%x\r\n" % len(piece))
            if cut is not None and cut <= start + len(piece):
                handler.wfile.write(piece[: cut - start])
                handler.hang_up()
                return
            handler.wfile.write(piece + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")

    def locate(self, handler, body):
        items = self.ask(handler, body, "locate")
        if items is None:
            return
        records = []
        for index, (_, key, offset, length) in enumerate(items):
            records += self.records(index, key, offset, length)
        files = json.dumps({"files": [str(segment.path) for segment in self.segments]}).encode()
        files += b" " * (-(len(files) + 8) % 8)
        answer = struct.pack("<II", len(files), len(records)) + files + b"".join(records)
        for key in self.evict_after_locate & set(self.kept):
            self.evict(key)
        handler.reply(
            200, self.mangle_locate(answer), **{"Content-Type": "application/vnd.shadeproxy.locate"}
        )

    def records(self, index, key, offset, length):
        if key not in self.kept:
            return [RECORD.pack(index, 0, 0, 0, 0, 0, 0, 0, b"")]
        stop = len(self.proxy.objects["train", key]) if length is None else offset + length
        records, position, page = [], 0, 0
        for number, start, header, size in self.kept[key]:
            first, last = max(offset, page), min(stop, page + size)
            if first < last:
                place = start + 64 + first - page
                records.append(
                    RECORD.pack(index, 200, number, start, place, last - first, position, 0, header)
                )
                position += last - first
            page += size
        return records


@pytest.fixture
def near(proxy, tmp_path):
    near = Near(proxy, tmp_path)
    yield near
    near.close()


@pytest.fixture
def parts(proxy):
    """Return a manifest of ten samples that lie in one object, ten bytes each."""
    proxy.put("train", shard=bytes(range(100)))
    return shade.Manifest.from_entries(
        "parts", [shade.Entry("train", "shard", 10 * i, 10) for i in range(10)]
    )


@pytest.fixture
def even(proxy):
    """Return a manifest of sixteen samples, which are whole objects of one length, and their bodies."""
    rng = np.random.default_rng(0)
    objects = {f"even/{i:02d}": rng.bytes(50) for i in range(16)}
    proxy.put("train", **objects)
    manifest = shade.Manifest.from_entries("even", [shade.Entry("train", key) for key in objects])
    return manifest, list(objects.values())


@pytest.fixture
def open_files():
    """Return a function that counts the descriptors of segment files in this process. It also counts
    descriptors of deleted files.
    """

    def count():
        links = [number for number in Path("/proc/self/fd").iterdir() if number.is_symlink()]
        return sum(".seg" in str(link.readlink()) for link in links if link.is_symlink())

    return count


@pytest.fixture
def silent_server():
    """Yield the port of a server that accepts connections and never sends an answer."""
    server = socket.create_server(("127.0.0.1", 0))
    yield server.getsockname()[1]
    server.close()
