"""Clients that take nothing hold all memory for pages on their way. Another client still gets its page, in
one process and in several, over HTTP and TLS.
"""

import http.client
import socket
import ssl
from contextlib import ExitStack

import pytest

from tests.support.certificate import write_certificate
from tests.support.served import wait_for
from tests.support.workers import wait_for_workers

SIZE = 4 << 20
PAGES = 8
BODY = bytes(range(256)) * (SIZE // 256)


def slow_client(port: int, key: str, tls: ssl.SSLContext | None) -> socket.socket:
    """Return a client that has asked for an object, and takes no byte of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(20)
    client.connect(("127.0.0.1", port))
    if tls is not None:
        client = tls.wrap_socket(client, server_hostname="127.0.0.1")
    client.sendall(f"GET /data/{key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


def outcome(client: socket.socket) -> str:
    """Return how the answer of a slow client ends, when it takes the bytes at last."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIZE)
    head, body = bytearray(), bytearray()
    try:
        while not head.endswith(b"\r\n\r\n"):
            if not (piece := client.recv(1)):
                return "cut"
            head += piece
        while len(body) < SIZE:
            if not (piece := client.recv(1 << 20)):
                return "cut"
            body += piece
    except (ConnectionResetError, ssl.SSLError):
        return "cut"
    assert head.startswith(b"HTTP/1.1 200")
    assert body == BODY
    return "whole"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("workers", "secure"), [(1, False), (1, True), (3, False)])
def test_a_page_comes_although_slow_clients_hold_all_memory(serve, fake_origin, tmp_path, workers, secure):
    fake_origin.objects |= {f"/data/k{number}": BODY for number in range(PAGES + 1)}
    settings, tls = {}, None
    if secure:
        certificate = write_certificate(tmp_path)
        tls = certificate.client_context()
        settings = {"s3__tls__cert": str(certificate.cert), "s3__tls__key": str(certificate.key)}
    proxy = serve(
        origin__endpoint=fake_origin.url,
        origin__credentials__source="anonymous",
        cache__inflight=f"{PAGES * SIZE}",
        cache__ram__capacity="1 MiB",  # Too small for a page, so that none is stored.
        cache__disk__capacity="0",
        prefetch__enabled="false",
        s3__workers=str(workers),
        **settings,
    )
    if workers > 1:
        wait_for_workers(proxy)
    host, _, port = proxy.s3.partition("://")[2].rpartition(":")
    with ExitStack() as stack:
        slow = [stack.enter_context(slow_client(int(port), f"k{number}", tls)) for number in range(PAGES)]
        wait_for(lambda: proxy.stats()["gauges"]["inflight_bytes"] == PAGES * SIZE)
        good = (
            http.client.HTTPConnection(host, int(port), timeout=30)
            if tls is None
            else http.client.HTTPSConnection(host, int(port), timeout=30, context=tls)
        )
        good.request("GET", f"/data/k{PAGES}")
        answer = good.getresponse()
        assert (answer.status, answer.read() == BODY) == (200, True)
        good.close()
        cut = proxy.stats()["gauges"]["slow_clients_cut"]
        assert 1 <= cut < PAGES, "no more clients are cut off than memory is needed"
        ends = [outcome(client) for client in slow]
    assert ends.count("cut") == cut
