"""A fake proxy and a fake origin, which run in threads of the test process. A script in the test makes them
fail.
"""

import gzip
import hashlib
import json
import socket
import struct
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest

import shadeproxy_sdk as shade


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError, OSError):
            self.close_connection = True

    def do(self):
        length = int(self.headers.get("content-length") or 0)
        self.server.fake.answer(self, self.rfile.read(length))

    do_GET = do_PUT = do_DELETE = do_POST = do  # noqa: N815 (the names that http.server calls)

    def reply(self, status, body=b"", *, announced=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if announced is None else announced))
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    # 64 clients can connect at the same time. With a shorter queue the kernel would make some of them wait
    # for a second.
    request_queue_size = 64

    def __init__(self, address, fake):
        self.fake = fake
        self.open = set()
        super().__init__(address, Handler)

    def process_request(self, request, client_address):
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *_):
        pass


class FakeStore:
    """An S3 endpoint that serves ``objects``. Each read of an object takes one entry from ``faults``, if
    there is one, and fails in this way.
    """

    def __init__(self):
        self.objects = {}
        self.faults = deque()
        self.reads = []
        self.port = 0
        self.page = 1000
        self.listings = 0
        self.die_after = None
        self.start()

    def start(self):
        self.server = Server(("127.0.0.1", self.port), self)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def die(self):
        """End as after kill -9: answer no more, and reset all open connections."""
        self.server.shutdown()
        self.server.server_close()
        for connection in list(self.server.open):
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def put(self, bucket, **objects):
        self.objects |= {(bucket, key): body for key, body in objects.items()}

    def answer(self, handler, _body):
        parts = urlsplit(handler.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if "list-type" in parts.query:
            self.list(handler, bucket, parse_qs(parts.query, keep_blank_values=True))
            return
        self.reads.append((bucket, key, dict(handler.headers.items())))
        if self.die_after is not None and len(self.reads) > self.die_after:
            handler.hang_up()
            return
        fault = self.faults.popleft() if self.faults else ""
        data = self.objects.get((bucket, key))
        if fault == "reset":
            handler.hang_up()
        elif fault and not fault.isdecimal():
            self.cut_short(handler, fault, data)
        elif fault:
            handler.reply(int(fault), b"<Error><Code>SlowDown</Code></Error>")
        elif data is None:
            handler.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif field := handler.headers.get("range"):
            first, last = field.removeprefix("bytes=").split("-")
            handler.reply(206, data[int(first) : int(last) + 1])
        else:
            handler.reply(200, data)

    def cut_short(self, handler, fault, data):
        """End the answer too early, in the way that ``fault`` names."""
        if fault == "short":
            handler.reply(200, data[:-1], announced=len(data))
        elif fault == "vast":
            handler.reply(200, data, announced=1 << 60)
        elif fault == "endless":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + data[:-1])
        else:
            head = b"HTTP/1.1 200 OK\r\nServer: fake\r\n" + fault.removeprefix("head").encode()
            handler.wfile.write(head)
        handler.hang_up()

    def keys(self, bucket, prefix):
        names = (key for b, key in self.objects if b == bucket and key.startswith(prefix))
        return sorted(names, key=str.encode)

    def list(self, handler, bucket, query):
        self.listings += 1
        start = int(query.get("continuation-token", ["0"])[0])
        keys = self.keys(bucket, query["prefix"][0])
        page = keys[start : start + self.page]
        more = start + self.page < len(keys)
        contents = "".join(
            f"<Contents><Key>{key.replace(' ', '+')}</Key>"
            f"<Size>{len(self.objects[bucket, key])}</Size></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{start + self.page}</NextContinuationToken>" if more else ""
        handler.reply(
            200,
            f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<EncodingType>url</EncodingType>{contents}{token}<IsTruncated>{str(more).lower()}</IsTruncated>"
            f"</ListBucketResult>".encode(),
        )


class FakeProxy(FakeStore):
    """A fake proxy with two listeners on one port: the control listener as docs/protocol.md describes it, and
    an S3 listener.
    """

    def __init__(self):
        self.datasets = {}
        self.jobs = {}
        self.ended = {}
        self.calls = []
        self.queries = []
        self.scores = {}
        self.progress = []
        self.takes_measures = True
        self.refused = 0
        self.orders = {}
        self.pieces = []
        self.frozen = {}
        self.resident = b""
        self.refuse = {}
        self.offers = {}
        self.more = {}
        self.released = threading.Event()
        self.released.set()
        self.entered = threading.Semaphore(0)
        super().__init__()

    def forget(self):
        """Lose all state, as a proxy does that restarts without its state directory."""
        self.datasets, self.jobs, self.scores, self.orders = {}, {}, {}, {}

    def answer(self, handler, body):
        parts = urlsplit(handler.path)
        if not parts.path.startswith("/v1/"):
            super().answer(handler, body)
            return
        method, path = handler.command, parts.path.removeprefix("/v1/")
        self.calls.append((method, path, dict(handler.headers.items())))
        self.queries.append((method, path, parts.query))
        if not self.released.is_set():
            self.entered.release()
            self.released.wait()
        refusal = next((told for part, told in self.refuse.items() if part in path), None)
        if refusal:
            error = {"code": "refused", "message": "told so", "hint": "change it"}
            handler.reply(refusal, json.dumps({"error": error}).encode())
            return
        job = self.jobs.get(path.split("/")[1]) if path.startswith("jobs/") else None
        told = handler.headers["x-shade-manifest"]
        if job is not None and told not in {None, self.digest(job["dataset"])}:
            handler.reply(409, b'{"error": {"code": "conflict", "message": "another manifest", "hint": ""}}')
            return
        if path in self.more:
            self.more[path](handler, body)
            return
        query = {name: float(value) for name, (value,) in parse_qs(parts.query).items() if name in QUERY}
        query |= {"format": 1.0} if "format=jsonl" in parts.query else {}
        answer = self.control(method, path.split("/"), query, body)
        if isinstance(answer, int):
            code, message = REFUSALS[answer]
            error = {"code": code, "message": message, "hint": ""}
            handler.reply(answer, json.dumps({"error": error}).encode())
        elif answer is None:
            handler.reply(404, b'{"error": {"code": "unknown_name", "message": "unknown", "hint": ""}}')
        else:
            answer, headers = answer if isinstance(answer, tuple) else (answer, {})
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            handler.reply(200, body, **headers)

    def control(self, method, path, query, body):
        kind, *rest = path
        if kind == "info":
            return {"version": "0", "s3_endpoint": self.url} | self.offers
        if kind == "datasets":
            if method == "PUT":
                return self.register(rest[0], body)
            return self.lines(rest[0]) if query.get("format") else self.summary(rest[0])
        name, *rest = rest
        return self.of_job(method, name, rest, query, body)

    def of_job(self, method, name, rest, query, body):
        if not rest:
            return self.register_job(name, json.loads(body)) if method == "PUT" else self.look(name)
        if name not in self.jobs:
            return None
        if rest[0] == "ranks":
            self.ended.setdefault(name, set()).add(int(rest[1]))
            return {}
        if rest[0] == "epochs":
            return self.of_epoch(method, name, rest, query, body)
        return getattr(self, f"{method}_{rest[0]}".lower())(name, body, **query)

    def of_epoch(self, method, name, rest, query, body):
        _, epoch, what = rest
        if what == "scores":
            return self.freeze(name, int(epoch), **json.loads(body))
        if method == "DELETE":
            return {} if self.orders.pop((name, int(epoch), int(query["rank"])), None) else None
        return self.put_order(name, int(epoch), body, **query)

    def put_order(self, name, epoch, body, rank, offset=0.0):
        rank, offset = int(rank), int(offset)
        known = self.orders.get((name, epoch, rank), []) if offset else []
        assert len(known) >= offset, "a piece that follows nothing"
        self.orders[name, epoch, rank] = known[:offset] + np.frombuffer(body, "<u4").tolist()
        self.pieces.append((epoch, rank, offset, len(body) // 4))
        return {}

    def in_use(self, name):
        return name in self.jobs and len(self.ended.get(name, ())) < self.jobs[name]["world_size"]

    def summary(self, name):
        if name not in self.datasets:
            return None
        return {"dataset": name, "digest": self.digest(name), "count": len(self.datasets[name])}

    def lines(self, name):
        lines = (
            {"bucket": bucket, "key": key} | ({"offset": offset, "length": length} if length else {})
            for bucket, key, offset, length in self.datasets[name]
        )
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def look(self, name):
        if name not in self.jobs:
            return None
        told = {"job": name, "digest": self.digest(self.jobs[name]["dataset"])}
        return told | {"order": self.order_of(name, self.progress[-1]["epoch"])} if self.progress else told

    def order_of(self, name, epoch):
        orders = [order for (job, of, _), order in self.orders.items() if (job, of) == (name, epoch)]
        ids = [sample for order in orders for sample in order]
        return {"epoch": epoch, "epochs": {str(epoch): len(ids)}, "distinct": len(set(ids))}

    def register_job(self, name, spec):
        if spec["dataset"] not in self.datasets:
            return None
        if self.in_use(name) and self.jobs[name]["dataset"] != spec["dataset"]:
            return 409
        self.ended.pop(name, None)
        self.jobs[name] = spec
        self.scores.setdefault(name, {})
        return {"job": name, "digest": self.digest(spec["dataset"])}

    def post_scores(self, name, body):
        count = struct.unpack_from("<I", body)[0]
        assert len(body) == 4 + 8 * count
        ids = np.frombuffer(body, "<u4", count, 4).tolist()
        values = np.frombuffer(body, "<f4", count, 4 + 4 * count).tolist()
        self.scores[name] |= dict(zip(ids, values, strict=True))
        return {"applied": count}

    def freeze(self, name, epoch, mean_loss=None):
        told = {"x-shade-mean-loss": repr(mean_loss)} if mean_loss is not None else {}
        column = self.get_scores(name, b"")
        if not self.scores[name]:
            return self.frozen.get((name, epoch), (column, told))
        return self.frozen.setdefault((name, epoch), (column, told))

    def get_scores(self, name, _body):
        column = np.full(len(self.datasets[self.jobs[name]["dataset"]]), np.nan, "<f4")
        for sample, value in self.scores[name].items():
            column[sample] = value
        return column.tobytes()

    def get_residency(self, _name, _body):
        return self.resident

    def post_progress(self, _name, body):
        report = json.loads(body)
        if not self.takes_measures and report.keys() & {"compute_s", "loader"}:
            self.refused += 1
            return 409
        self.progress.append(report)
        return {}

    def register(self, name, body):
        packed = body[:2] == b"\x1f\x8b"
        if packed or b"\n" in body:
            unpacked = gzip.decompress(body) if packed else body
            lines = [json.loads(line) for line in unpacked.splitlines()]
            entries = [(r["bucket"], r["key"], r.get("offset", 0), r.get("length")) for r in lines]
        else:
            spec = json.loads(body)
            entries = [(spec["bucket"], key, 0, None) for key in self.keys(spec["bucket"], spec["prefix"])]
        used = any(self.in_use(job) and spec["dataset"] == name for job, spec in self.jobs.items())
        if used and self.datasets[name] != entries:
            return 409
        self.datasets[name] = entries
        return self.summary(name)

    def digest(self, name):
        lines = (f"{b}\0{k}\0{'' if n is None else f'{o}:{n}'}\n" for b, k, o, n in self.datasets[name])
        return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


QUERY = {"rank", "offset", "epoch"}
REFUSALS = {
    400: ("invalid_request", "past"),
    409: ("conflict", "in use"),
    413: ("body_too_large", "a bomb"),
    422: ("not_feasible", "0.25 of it"),
}
SAMPLES = {f"{i % 3}/{i:03d}": bytes([i]) * (i + 1) for i in range(40)}


@pytest.fixture
def proxy():
    fake = FakeProxy()
    fake.put("train", **SAMPLES)
    yield fake
    fake.released.set()
    fake.die()


@pytest.fixture
def origin():
    fake = FakeStore()
    fake.put("train", **SAMPLES)
    yield fake
    fake.die()


@pytest.fixture
def make_client(monkeypatch):
    """Return a function that makes clients. The clients have short timeouts, ignore the AWS environment
    variables, and are closed after the test.
    """
    for name in (
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ACCESS_KEY_ID",
    ):
        monkeypatch.delenv(name, raising=False)
    clients = []

    def make(fake, **options):
        options = {"timeout_s": 5.0, "retry_s": 60.0} | options
        client = shade.Client(fake if isinstance(fake, str) else fake.url, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(make_client, proxy, origin):
    return make_client(proxy, origin=shade.Origin(origin.url))


@pytest.fixture
def manifest(client):
    return client.manifest(bucket="train")


@pytest.fixture
def make_job(client, manifest):
    """Return a function that makes jobs. The jobs send only when a test tells them to, and are closed after
    the test.
    """
    jobs = []

    def make(name="run", **options):
        options = {"interval_s": 3600.0, "dataset": manifest} | options
        job = options.pop("client", client).job(name, **options)
        jobs.append(job)
        return job

    yield make
    for job in jobs:
        job.close(timeout_s=2.0)
