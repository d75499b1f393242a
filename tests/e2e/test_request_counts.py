"""Each answer to a client is counted once. This holds for every process and lane, plain and over TLS."""

import http.client
import socket
import zlib
from base64 import b64encode
from collections import Counter

import pytest

from tests.support.certificate import write_certificate
from tests.support.served import wait_for
from tests.support.workers import wait_for_workers

SIZE = 60_000
PIECE = 9_000


@pytest.fixture(params=["1 plain", "1 tls", "3 plain", "3 tls"])
def served(request, serve, fake_origin, tmp_path, monkeypatch):
    """Run a proxy of one or three processes. ``served.opened()`` returns a new connection to its S3
    listener.
    """
    count, kind = request.param.split()
    settings = {}
    certificate = write_certificate(tmp_path)
    if kind == "tls":
        settings = {"s3__tls__cert": str(certificate.cert), "s3__tls__key": str(certificate.key)}
    for n in range(4):
        fake_origin.objects[f"/data/{n}"] = bytes([n]) * SIZE
    environment = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    proxy = serve(None, environment, origin__endpoint=fake_origin.url, s3__workers=count, **settings)
    wait_for_workers(proxy)

    def opened():
        address = proxy.s3.partition("://")[2]
        if kind == "plain":
            return http.client.HTTPConnection(address, timeout=20)
        return http.client.HTTPSConnection(address, timeout=20, context=certificate.client_context())

    proxy.opened = opened
    return proxy


def chunked(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a body in unsigned aws-chunked framing with a trailer, as SDKs send it over TLS."""
    pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    checksum = b64encode(zlib.crc32(body).to_bytes(4, "big"))
    framed += b"0\r\nx-amz-checksum-crc32:%b\r\n\r\n" % checksum
    return framed, {
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "Content-Encoding": "aws-chunked",
        "x-amz-decoded-content-length": str(len(body)),
        "x-amz-trailer": "x-amz-checksum-crc32",
    }


def asked(opened) -> Counter[tuple[str, int]]:
    """Send requests of all kinds over several connections. Return the answers by operation and status."""
    got: Counter[tuple[str, int]] = Counter()

    def send(connection, operation, method, path, body=None, **headers):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        got[operation, answer.status] += 1
        if answer.will_close:
            connection.close()

    for _ in range(4):
        connection = opened()
        for n in range(3):
            for _ in range(5):
                send(connection, "GetObject", "GET", f"/data/{n}")
            send(connection, "GetObject", "GET", f"/data/{n}", Range="bytes=5-99")
            send(connection, "GetObject", "GET", f"/data/{n}", Range=f"bytes={SIZE}-")
            send(connection, "GetObject", "GET", f"/data/{n}", **{"If-None-Match": "*"})
            send(connection, "HeadObject", "HEAD", f"/data/{n}")
        send(connection, "GetObject", "GET", "/data/none")
        send(connection, "ListObjectsV2", "GET", "/data?list-type=2")
        framed, fields = chunked(b"x" * SIZE)
        send(connection, "PutObject", "PUT", "/data/new", framed, **fields)
        send(connection, "PutObject", "PUT", "/data/new", b"x" * 1_000)
        send(connection, "Invalid", "GET", "/data/0", Authorization="Bearer none")
        connection.close()
    return got


def counted(served) -> Counter[tuple[str, int]]:
    operations = served.stats()["requests"]["by_operation"]
    return Counter(
        {
            (operation, int(status)): count
            for operation, shown in operations.items()
            for status, count in shown["statuses"].items()
        }
    )


def test_each_answer_is_counted_once_by_operation_and_status(served):
    got = asked(served.opened)
    wait_for(lambda: counted(served).total() >= got.total())
    assert counted(served) == got
    shown = served.stats()["requests"]
    assert shown["by_operation"]["PutObject"]["received_bytes"] == 4 * (SIZE + 1_000)
    assert sum(times["count"] for times in shown["latency_s"].values()) == got.total()


def test_a_503_is_counted_where_the_origin_fails(served, fake_origin):
    fake_origin.failing = (503, "SlowDown")
    connection = served.opened()
    connection.request("GET", "/data/3")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 503
    wait_for(lambda: counted(served).total())
    assert counted(served) == {("GetObject", 503): 1}


def test_bytes_that_are_no_http_are_counted(served):
    if served.s3.startswith("https"):
        pytest.skip("they do not get through TLS")
    host, _, port = served.s3.partition("://")[2].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(b"\x16\x03\x01 no http\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 400"
    wait_for(lambda: counted(served).total())
    assert counted(served) == {("Invalid", 400): 1}
