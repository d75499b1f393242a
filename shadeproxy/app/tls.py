"""The certificate of the S3 listener. It is read again when its files change.

Tools that renew certificates replace the files while the proxy runs. New connections then get the new
certificate, and existing connections keep the old one. The tools replace one file after the other. While
certificate and key do not match, the old certificate stays in use, and two seconds later the files are read
again. Only the coordinator reads the files, and it gives their content to its workers. So all processes use
the same certificate, even a worker that starts while the files change.
"""

import asyncio
import mmap
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog

from shadeproxy.app.certificate_diagnosis import CertificateFacts, expiry_s
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ConfigError

_log = structlog.get_logger(__name__)
_LOOK_S = 2.0

_Stamp = tuple[tuple[int, int, int], ...]


class Certificate(NamedTuple):
    """A certificate chain and its private key: the content of PEM files."""

    chain: bytes
    key: bytes


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """Return a TLS context for a listener that uses ``certificate``. Raises ssl.SSLError for an unusable
    certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    use_certificate(context, certificate)
    return context


def use_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Use ``certificate`` for new connections of ``context``. Raises ssl.SSLError.

    Call it on the thread that accepts connections. OpenSSL does not guard a context against a change by one
    thread while another thread copies it.
    """
    with ExitStack() as files:
        # Python's ssl module only loads certificates from files, by their names.
        chain, key = (files.enter_context(_file_in_memory(content)) for content in certificate)
        context.load_cert_chain(chain, key, password=refuse_encrypted)


def refuse_encrypted() -> str:
    """Raise ssl.SSLError. OpenSSL calls this when it needs the pass phrase of a private key. Otherwise it
    would ask for the pass phrase at the terminal, and wait there for ever.
    """
    raise ssl.SSLError("the private key is encrypted; decrypt it (openssl pkey -in KEY -out PLAIN)")


@contextmanager
def _file_in_memory(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("shadeproxy-certificate", os.MFD_CLOEXEC)
    try:
        if content:
            os.ftruncate(descriptor, len(content))
            with mmap.mmap(descriptor, len(content)) as memory:
                memory[:] = content
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


class ServerTls:
    """The TLS context of the listener. ``context`` is the same object for its whole life.

    Making it reads the files. Raises ConfigError for unusable files.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = Path(cert), Path(key)
        self._seen = self._found_at = self._stamp()
        self.certificate = self._found = self._read()
        """The certificate in use."""
        self.context = self._context_of(self.certificate)
        self.failure = ""
        """Reason why the newest files are not used, or ""."""

    def facts(self, now_s: float) -> CertificateFacts:
        """Return the facts about the certificate for ``diagnose``."""
        return CertificateFacts(expiry_s(self.certificate.chain), now_s, self.failure)

    def changed(self) -> bool:
        """Return whether the files have changed and are usable. Blocks. Raises ConfigError if they are not
        usable.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        found = self._read()
        # Load the files into another context first. If they do not match, ``self.context`` would keep half of
        # the pair.
        self._context_of(found)
        self._found_at, self._found = stamp, found
        return True

    def adopt(self) -> None:
        """Let new connections use the certificate that ``changed`` has found. Call this on the thread that
        accepts connections.
        """
        use_certificate(self.context, self._found)
        self._seen, self.certificate = self._found_at, self._found

    async def watch(
        self, clock: Clock, adopted: Callable[[Certificate], Awaitable[None]] | None = None
    ) -> None:
        """Look for changed files every two seconds, until cancelled.

        ``adopted`` is called with each new certificate. It returns when every process uses that certificate.
        """
        while True:
            await clock.sleep(_LOOK_S)
            try:
                if await asyncio.to_thread(self.changed):
                    self.adopt()
                    if adopted is not None:
                        await adopted(self.certificate)
                    _log.info("certificate changed", cert=str(self._cert))
                self.failure = ""
            except ConfigError as error:
                if str(error) != self.failure:
                    self.failure = str(error)
                    _log.warning("certificate not changed", error=self.failure)

    def _stamp(self) -> _Stamp:
        try:
            found = [path.stat() for path in (self._cert, self._key)]
        except OSError as error:
            raise self._unusable(error) from error
        return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in found)

    def _read(self) -> Certificate:
        try:
            return Certificate(self._cert.read_bytes(), self._key.read_bytes())
        except OSError as error:
            raise self._unusable(error) from error

    def _context_of(self, certificate: Certificate) -> ssl.SSLContext:
        try:
            return server_context(certificate)
        except (OSError, ssl.SSLError) as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"s3.tls: cannot use {self._cert} and {self._key}: {error};"
            " set s3.tls.cert and s3.tls.key to PEM files of a certificate and its key"
        )
