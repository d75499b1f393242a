"""TLS of a listener, whose certificate is renewed while the listener runs."""

import asyncio
import os
import ssl

import pytest
import structlog
from cryptography.hazmat.primitives import serialization

from shadeproxy.app.tls import ServerTls
from shadeproxy.cli.check import run_checks
from shadeproxy.config import Settings
from shadeproxy.core.clock import SystemClock
from shadeproxy.core.errors import ConfigError
from shadeproxy.origin.s3transport import tls_context
from tests.support.certificate import write_certificate
from tests.support.clock import ManualClock

CHANGED = {"event": "certificate changed", "log_level": "info"}


async def test_a_new_certificate_is_logged_when_every_process_has_it(tmp_path):
    old = await asyncio.to_thread(write_certificate, tmp_path)
    tls = await asyncio.to_thread(ServerTls, str(old.cert), str(old.key))
    clock, adopted = ManualClock(), asyncio.Queue()
    may_go_on = asyncio.Event()

    async def adopt(certificate):
        adopted.put_nowait(certificate)
        await may_go_on.wait()

    with structlog.testing.capture_logs() as lines:
        watching = asyncio.create_task(tls.watch(clock, adopt))
        new = await asyncio.to_thread(write_certificate, tmp_path)
        touch_later(new.cert)
        assert (await adopted.get()).chain == await asyncio.to_thread(new.cert.read_bytes)
        # While only one of the two files is new, an event about unusable files may be logged, but not this
        # one.
        assert "certificate changed" not in [line["event"] for line in lines]
        may_go_on.set()
        async with asyncio.timeout(20):
            while lines[-1:] != [CHANGED | {"cert": str(new.cert)}]:
                await asyncio.sleep(0.01)
    watching.cancel()


def touch_later(path):
    """Move the time of a file so far ahead that every file system shows the change."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


async def shown(tls: ServerTls) -> bytes:
    """Return the certificate that a new connection gets, in DER form."""
    server = await asyncio.start_server(
        lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=tls.context
    )
    async with server:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        seen = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return seen


def der(certificate) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.cert.read_text())


def test_what_is_older_than_tls_1_2_is_not_spoken(tmp_path):
    certificate = write_certificate(tmp_path)
    server = ServerTls(str(certificate.cert), str(certificate.key)).context
    assert {server.minimum_version, tls_context(None).minimum_version} == {ssl.TLSVersion.TLSv1_2}


def test_an_origin_is_asked_for_its_certificate_and_name():
    context = tls_context(None)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


async def test_new_connections_are_shown_the_new_certificate(tmp_path):
    old = await asyncio.to_thread(write_certificate, tmp_path)
    tls = await asyncio.to_thread(ServerTls, str(old.cert), str(old.key))
    first = der(old)
    assert not await asyncio.to_thread(tls.changed)
    assert await shown(tls) == first
    new = await asyncio.to_thread(write_certificate, tmp_path)
    touch_later(new.cert)
    assert der(new) != first
    assert await asyncio.to_thread(tls.changed)
    tls.adopt()
    assert await shown(tls) == der(new)
    assert not await asyncio.to_thread(tls.changed)


async def test_files_that_do_not_fit_leave_the_old_certificate_serving(tmp_path):
    old = await asyncio.to_thread(write_certificate, tmp_path)
    tls = await asyncio.to_thread(ServerTls, str(old.cert), str(old.key))
    first, key = der(old), old.key.read_bytes()
    new = await asyncio.to_thread(write_certificate, tmp_path)
    fitting = new.key.read_bytes()
    new.key.write_bytes(key)
    touch_later(new.cert)
    with pytest.raises(
        ConfigError, match=r"s3\.tls: cannot use .*loopback\.crt and .*loopback\.key: .*(?i:mismatch)"
    ):
        await asyncio.to_thread(tls.changed)
    assert await shown(tls) == first
    new.key.unlink()
    to_change = "set s3.tls.cert and s3.tls.key to PEM files of a certificate and its key"
    with pytest.raises(ConfigError, match=f"No such file.*; {to_change}$"):
        await asyncio.to_thread(tls.changed)
    new.key.write_bytes(fitting)
    assert await asyncio.to_thread(tls.changed)
    tls.adopt()
    assert await shown(tls) == der(new)


async def test_the_watch_tells_and_goes_on(tmp_path):
    """Unusable files do not end the watch, because at the next look the files may belong together."""
    made = await asyncio.to_thread(write_certificate, tmp_path)
    tls = await asyncio.to_thread(ServerTls, str(made.cert), str(made.key))
    looks, adopted = asyncio.Queue(), []
    results = iter([ConfigError("s3.tls: no"), ConfigError("s3.tls: no"), True])

    def changed():
        result = next(results, False)
        if isinstance(result, ConfigError):
            raise result
        return result

    class Ticking(SystemClock):
        async def sleep(self, seconds):
            assert seconds == 2.0
            await looks.get()

    tls.changed = changed
    tls.adopt = lambda: adopted.append(True)
    watch = asyncio.create_task(tls.watch(Ticking()))
    for _ in range(5):
        looks.put_nowait(None)
    while looks.qsize() or not adopted:
        await asyncio.sleep(0.01)
    assert not watch.done()
    assert adopted == [True]
    watch.cancel()


@pytest.fixture
def encrypted(tmp_path):
    """Return a certificate whose private key is encrypted."""
    made = write_certificate(tmp_path)
    key = serialization.load_pem_private_key(made.key.read_bytes(), None)
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return made


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_pass_phrase(encrypted):
    with pytest.raises(ConfigError, match="the private key is encrypted; decrypt it"):
        ServerTls(str(encrypted.cert), str(encrypted.key))
    settings = Settings.load(None, [f"s3.tls.cert={encrypted.cert}", f"s3.tls.key={encrypted.key}"])
    (row,) = (row for row in run_checks(settings, with_origin=False) if row.name == "s3.tls")
    assert not row.ok
    assert "the private key is encrypted" in row.detail
