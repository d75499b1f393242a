"""A proxy of several processes over TLS gives the same answers as a proxy of one process, and as one over
plain HTTP.
"""

import asyncio
import http.client
import io
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import aiohttp
import pytest
from boto3.s3.transfer import TransferConfig

from tests.support.certificate import Certificate, write_certificate
from tests.support.s3.clients import ACCESS, SECRET
from tests.support.s3.posting import form, presigned
from tests.support.served import log_of, wait_for
from tests.support.workers import wait_for_workers, worker_pids

SIZE = 60_000
OWN = {"x-amz-request-id", "x-amz-id-2", "date"}  # Fields that differ with the process or the time.
MIB = 1 << 20


def body_of(name: str, size: int = SIZE) -> bytes:
    return f"{name};".ljust(32, ".").encode() * (size // 32)


@contextmanager
def connect(served, certificate: Certificate | None = None) -> Iterator[http.client.HTTPConnection]:
    address = served.s3.partition("://")[2]
    if certificate is None:
        connection = http.client.HTTPConnection(address, timeout=20)
    else:
        connection = http.client.HTTPSConnection(address, timeout=20, context=certificate.client_context())
    try:
        yield connection
    finally:
        connection.close()


def get(connection, path: str, method: str = "GET", body: bytes | None = None, **headers: str):
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def plain(answer):
    status, headers, body = answer
    return status, {name: value for name, value in headers.items() if name.lower() not in OWN}, body


@pytest.fixture
def certificate(tmp_path) -> Certificate:
    return write_certificate(tmp_path)


@pytest.fixture
def start(serve, bucket_directory, certificate):
    """Return a function that runs a proxy of ``count`` processes in which three objects are cached."""

    for n in range(3):
        (bucket_directory / "data" / str(n)).write_bytes(body_of(str(n)))

    def begin(count: int = 2, *, tls: bool = True, config=None, **settings: str):
        if tls:
            settings |= {"s3__tls__cert": str(certificate.cert), "s3__tls__key": str(certificate.key)}
        served = serve(
            config,
            origin__kind="file",
            origin__path=str(bucket_directory),
            s3__workers=str(count),
            **settings,
        )
        wait_for_workers(served)
        with connect(served, certificate if tls else None) as connection:
            for n in range(3):
                # The second read may join the first on its way to the cache, so two reads need not suffice.
                wait_for(lambda: get(connection, f"/data/{n}")[1]["x-shade-cache"] == "ram")  # noqa: B023 - called here
        return served

    return begin


@pytest.fixture
def secure(start):
    """Run a proxy whose coordinator can be stopped, so that only its worker answers."""
    served = start()
    yield served
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGCONT)


ASKED = [
    ("GET", "/data/0", {}),
    ("GET", "/data/1", {"Range": "bytes=10-99"}),
    ("GET", "/data/1", {"Range": "bytes=-7"}),
    ("GET", "/data/2", {"If-None-Match": "*"}),
    ("HEAD", "/data/2", {}),
    ("GET", "/data/none", {}),
    ("GET", "/data/0", {"Range": "bytes=90000-"}),
    ("GET", "/data?list-type=2&prefix=nothing", {}),
    ("GET", "/data/1", {"Cache-Control": "no-cache"}),
    ("DELETE", "/data/none", {}),
]


def test_answers_are_those_of_one_process_and_of_plain_http(start, certificate):
    def comparable(answer):
        status, headers, body = plain(answer)
        if status >= 400:
            # Drop the rest of the document, because it differs from request to request.
            body = body.partition(b"<RequestId>")[0]
        return status, headers, body

    answers = []
    for count, tls in ((1, False), (2, True), (1, True)):
        served = start(count, tls=tls)
        with connect(served, certificate if tls else None) as connection:
            answers.append(
                [comparable(get(connection, path, method, **fields)) for method, path, fields in ASKED]
            )
        served.stop()
    for other in answers[1:]:
        for asked, one, two in zip(ASKED, answers[0], other, strict=True):
            assert one == two, asked


def test_a_worker_answers_hits_by_itself(secure, certificate):
    hits = ASKED[:5]
    with connect(secure, certificate) as connection:
        expected = [plain(get(connection, path, method, **fields)) for method, path, fields in hits]
    secure.process.send_signal(signal.SIGSTOP)
    with connect(secure, certificate) as connection:
        for _ in range(3):
            for (method, path, fields), answer in zip(hits, expected, strict=True):
                assert plain(get(connection, path, method, **fields)) == answer


def test_what_is_no_hit_is_relayed_on_the_same_connection(secure, certificate):
    secure.process.send_signal(signal.SIGSTOP)
    with connect(secure, certificate) as connection:
        assert get(connection, "/data/0")[2] == body_of("0")
        secure.process.send_signal(signal.SIGCONT)
        for n in range(3):
            assert get(connection, f"/data/none{n}")[0] == 404
            assert get(connection, f"/data/{n}")[2] == body_of(str(n))
            assert get(connection, f"/data/none{n}", "HEAD")[0] == 404
            assert get(connection, f"/data/{n}", **{"Cache-Control": "no-cache"})[0] == 200
        assert get(connection, "/data?list-type=2")[2].count(b"<Key>") == 3
        assert get(connection, "/data/0", "PUT", body_of("new"))[0] == 200
        assert get(connection, "/data/0")[2] == body_of("new")


def test_a_form_sent_over_tls_is_answered_with_an_https_location(
    start, tmp_path, certificate, bucket_directory
):
    """A form upload over TLS is answered with an https Location. The coordinator makes the answer, although
    its own connection to the worker has no TLS.
    """
    (bucket_directory / "b").mkdir()
    (tmp_path / "secret").write_text(SECRET)
    config = tmp_path / "config.toml"
    config.write_text(f'[[auth.clients]]\naccess_key = "{ACCESS}"\nsecret_file = "{tmp_path}/secret"\n')
    served = start(config=config)
    body = form(presigned(fields={"success_action_status": "201"}))
    served.process.send_signal(signal.SIGSTOP)
    with connect(served, certificate) as connection:
        # The coordinator is stopped, so this connection belongs to a worker.
        assert get(connection, "/data/0")[0] == 200
        served.process.send_signal(signal.SIGCONT)
        answer = get(connection, "/b", "POST", body, **{"Content-Type": "multipart/form-data; boundary=X"})
    assert answer[0] == 201, answer
    assert b"<Location>https://127.0.0.1:" in answer[2]


def test_boto3_writes_and_reads_over_a_workers_connection(secure, certificate):
    client = secure.client(
        aws_access_key_id="any", aws_secret_access_key="any", verify=str(certificate.authority)
    )
    secure.process.send_signal(signal.SIGSTOP)
    for _ in range(3):
        assert client.get_object(Bucket="data", Key="0")["Body"].read() == body_of("0")
        part = client.get_object(Bucket="data", Key="1", Range="bytes=32-63")
        assert part["Body"].read() == body_of("1")[:32]
    secure.process.send_signal(signal.SIGCONT)
    big = os.urandom(11 * MIB)
    for round_ in range(3):
        client.put_object(Bucket="data", Key="new", Body=b"first")
        client.put_object(Bucket="data", Key="new", Body=f"second {round_}".encode())
        for _ in range(3):
            assert client.get_object(Bucket="data", Key="new")["Body"].read() == f"second {round_}".encode()
        assert client.list_objects_v2(Bucket="data")["KeyCount"] >= 4
        parts = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
        client.upload_fileobj(io.BytesIO(big), "data", "big", Config=parts)
        for _ in range(2):
            assert client.get_object(Bucket="data", Key="big")["Body"].read() == big
        client.delete_object(Bucket="data", Key="new")
        with pytest.raises(client.exceptions.NoSuchKey):
            client.get_object(Bucket="data", Key="new")
    client.close()


async def test_aiohttp_reads_much_at_once(start, certificate):
    served = await asyncio.to_thread(start, 2, cache__ram__capacity="64 MiB")
    big = os.urandom(6 * MIB + 5)
    connector = aiohttp.TCPConnector(ssl=certificate.client_context(), limit=32)
    async with aiohttp.ClientSession(served.s3, connector=connector) as session:
        async with session.put("/data/big", data=io.BytesIO(big)) as answer:
            assert answer.status == 200

        async def read(n: int) -> None:
            key = ("0", "1", "big", "none")[n % 4]
            async with session.get(f"/data/{key}") as answer:
                body = await answer.read()
            expected = {"big": big, "none": None}.get(key, body_of(key))
            assert answer.status == (404 if expected is None else 200)
            assert expected is None or body == expected

        await asyncio.gather(*(read(n) for n in range(400)))


# ------------------------------------------------------------------ the certificate


def der_of(certificate: Certificate) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.cert.read_text())


def shown(served) -> bytes:
    """Return, as DER, the certificate that the proxy shows on a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = served.s3.partition("://")[2].rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as link,
        context.wrap_socket(link) as secured,
    ):
        found = secured.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_every_process_shows_a_new_certificate_once_it_is_logged(secure, certificate, tmp_path):
    first = der_of(certificate)
    with connect(secure, certificate) as old:
        assert get(old, "/data/0")[0] == 200
        # Wait longer than one tick of the file system's clock, so that the file's time changes.
        time.sleep(0.02)
        renewed = write_certificate(tmp_path)
        assert der_of(renewed) != first
        wait_for(lambda: log_of(secure, "certificate changed"))
        assert {shown(secure) for _ in range(20)} == {der_of(renewed)}
        secure.process.send_signal(signal.SIGSTOP)
        assert {shown(secure) for _ in range(5)} == {der_of(renewed)}, "the worker's is the old one"
        secure.process.send_signal(signal.SIGCONT)
        assert get(old, "/data/0")[0] == 200, "a connection of before is cut"


def test_a_worker_that_is_replaced_has_the_certificate_in_use_although_its_files_are_broken(
    secure, certificate
):
    first = der_of(certificate)
    certificate.key.write_text("no key")
    wait_for(lambda: log_of(secure, "certificate not changed"))
    (old,) = worker_pids(secure)
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: worker_pids(secure) not in ([], [old]))
    wait_for_workers(secure)
    assert {shown(secure) for _ in range(10)} == {first}
    secure.process.send_signal(signal.SIGSTOP)
    assert shown(secure) == first


def test_a_worker_that_does_not_take_the_certificate_is_replaced(secure, tmp_path):
    (old,) = worker_pids(secure)
    os.kill(old, signal.SIGSTOP)
    time.sleep(0.02)
    renewed = write_certificate(tmp_path)
    wait_for(lambda: log_of(secure, "certificate changed"))
    assert log_of(secure, "a worker does not answer and is ended")
    assert {shown(secure) for _ in range(10)} == {der_of(renewed)}
    wait_for(lambda: worker_pids(secure) not in ([], [old]))
    wait_for_workers(secure)
    assert {shown(secure) for _ in range(10)} == {der_of(renewed)}


# ------------------------------------------------------------------ the end


def test_stopping_ends_idle_connections_soon(secure, certificate):
    """Stopping a proxy soon ends idle connections. Among them are clients that read nothing while idle, as
    pools of connections do.
    """
    with ExitStack() as idle:
        for n in range(10):
            connection = idle.enter_context(connect(secure, certificate))
            assert get(connection, "/data/0")[0] == 200
            if n % 2:
                assert get(connection, "/data/none")[0] == 404
        began = time.monotonic()
        assert secure.stop() == 0
    assert time.monotonic() - began < 15, "idle connections were waited for"


def test_who_speaks_no_tls_gets_no_answer_and_harms_nobody(secure, certificate):
    host, _, port = secure.s3.partition("://")[2].rpartition(":")
    for _ in range(6):
        with socket.create_connection((host, int(port)), timeout=20) as link:
            link.sendall(b"GET /data/0 HTTP/1.1\r\nHost: h\r\n\r\n")
            received = b""
            try:
                while piece := link.recv(1000):
                    received += piece
            except ConnectionError:
                pass
            assert not received.startswith(b"HTTP")
    with connect(secure, certificate) as connection:
        assert get(connection, "/data/0")[0] == 200
