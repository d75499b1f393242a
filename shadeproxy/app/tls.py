"""The certificate of the S3 listener, read again when its files change.

Renewal tools replace the files under a running server. New connections get the new certificate, existing ones
keep theirs. While the files do not match (they are replaced one after the other), the old certificate stays
in use, and the next look tries again.
"""

import asyncio
import ssl
from pathlib import Path

import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ConfigError

_log = structlog.get_logger(__name__)
_LOOK_S = 2.0

_Stamp = tuple[tuple[int, int, int], ...]


class ServerTls:
    """The TLS context of the listener: ``context`` is one object for its whole life.

    Making it reads the files. Raises ConfigError for unusable ones.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = Path(cert), Path(key)
        self._seen = self._found = self._stamp()
        self.context = self._load()

    def changed(self) -> bool:
        """Return whether there are new, usable files. Blocks. Raises ConfigError for unusable ones."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        # Load into a separate context: a pair that does not match would leave half of it in the live one.
        self._load()
        self._found = stamp
        return True

    def adopt(self) -> None:
        """Use the files that ``changed`` found for new connections. Raises ConfigError. Call it on the thread
        that accepts connections: OpenSSL does not guard a context that one thread changes while another
        copies it.
        """
        try:
            self.context.load_cert_chain(self._cert, self._key)
        except (OSError, ssl.SSLError) as error:
            raise self._unusable(error) from error
        self._seen = self._found

    async def watch(self, clock: Clock) -> None:
        """Look for new files every two seconds, until cancelled."""
        told = ""
        while True:
            await clock.sleep(_LOOK_S)
            try:
                if await asyncio.to_thread(self.changed):
                    self.adopt()
                    _log.info("certificate changed", cert=str(self._cert))
                told = ""
            except ConfigError as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("certificate not changed", error=told)

    def _stamp(self) -> _Stamp:
        try:
            found = [path.stat() for path in (self._cert, self._key)]
        except OSError as error:
            raise self._unusable(error) from error
        return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._cert, self._key)
        except (OSError, ssl.SSLError) as error:
            raise self._unusable(error) from error
        return context

    def _unusable(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"s3.tls: cannot use {self._cert} and {self._key}: {error};"
            " set s3.tls.cert and s3.tls.key to PEM files of a certificate and its key"
        )
