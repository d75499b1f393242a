"""Origin credentials: one provider for each upstream, called before each signature.

chain.py resolves and refreshes the AWS chain with aiobotocore (environment, profiles, files, web identity,
container and instance metadata). aiobotocore reads files on its event loop and would block ours, so it gets a
loop of its own in a thread. The thread also imports aiobotocore when it is first needed. The import takes
0.3 s of processor time, and no start of the proxy should wait for it. No repr, error or log line shows the
secret. Signing is in core/sigv4.py.
"""

import asyncio
from datetime import datetime
from typing import Any, Protocol

import structlog

from shadeproxy.core.clock import Clock, SystemClock
from shadeproxy.core.errors import CredentialsUnresolved, NoCredentials, OriginAnswer
from shadeproxy.core.sigv4 import Credentials

_log = structlog.get_logger(__name__)
_RETRY_REFRESH_S = 30.0


class CredentialProvider(Protocol):
    """Provides the credentials of one upstream."""

    @property
    def is_ready(self) -> bool:
        """True if ``credentials`` would return ``current`` without waiting."""
        ...

    @property
    def current(self) -> Credentials | None: ...

    async def credentials(self) -> Credentials | None:
        """Return the credentials to sign with; None if requests are not to be signed. Raises OriginAnswer
        403, CredentialsUnresolved.
        """
        ...


class AnonymousCredentials:
    """Provides no credentials, so that requests are not signed, as public buckets allow."""

    is_ready = True
    current = None

    async def credentials(self) -> Credentials | None:
        return None


class StaticCredentials:
    """Provides one fixed key, such as the upstream credentials of an ``[[auth.clients]]`` entry."""

    is_ready = True

    def __init__(self, credentials: Credentials) -> None:
        self.current = credentials

    async def credentials(self) -> Credentials | None:
        return self.current


class ChainCredentials:
    """Provides the credentials of the AWS chain, refreshed in time. ``profile``: a profile of the AWS
    configuration files.

    Concurrent callers share one resolution of the chain. If a refresh fails while the old credentials are
    still valid, these stay in use, and the chain is tried again 30 s later.
    """

    def __init__(self, *, profile: str | None = None, clock: Clock | None = None) -> None:
        self._profile = profile
        self._clock = clock or SystemClock()
        self._resolved: Any = None
        self.current: Credentials | None = None
        """The credentials in use; None until the chain was first resolved."""
        self._next_attempt_s = 0.0
        self._loading: asyncio.Task[None] | None = None

    @property
    def expires_s(self) -> float | None:
        """Unix time at which the credentials in use expire; None if they do not expire, or do not
        say when.
        """
        # aiobotocore has no public name for the expiry, and the attribute may be missing.
        expiry = getattr(self._resolved, "_expiry_time", None)
        return expiry.timestamp() if isinstance(expiry, datetime) else None

    @property
    def is_ready(self) -> bool:
        """See ``CredentialProvider.is_ready``."""
        return self.current is not None and not self._is_due()

    async def credentials(self) -> Credentials | None:
        if not self.is_ready:
            if self._loading is None:
                self._loading = asyncio.create_task(self._load())
            # Shielded: a client that goes away must not cancel a resolution for which other clients wait.
            await asyncio.shield(self._loading)
        return self.current

    def _is_due(self) -> bool:
        needed = getattr(self._resolved, "refresh_needed", None)
        return needed is not None and self._clock.monotonic_s() >= self._next_attempt_s and bool(needed())

    async def _load(self) -> None:
        self._next_attempt_s = self._clock.monotonic_s() + _RETRY_REFRESH_S
        try:
            self.current = await asyncio.to_thread(self._resolve)
        except OriginAnswer:
            raise
        except Exception as error:  # noqa: BLE001 - providers speak to files, processes and services of any kind
            from shadeproxy.origin.chain import reason_of  # noqa: PLC0415 (as in _resolve_chain)

            reason = f"the origin's credentials could not be resolved: {reason_of(error)}"
            if self.current is None or self._resolved.refresh_needed(0):
                raise CredentialsUnresolved(reason) from None
            _log.warning("credentials_not_renewed", reason=reason)
        finally:
            self._loading = None

    def _resolve(self) -> Credentials:
        return asyncio.run(self._resolve_chain())

    async def _resolve_chain(self) -> Credentials:
        if self._resolved is None:
            from shadeproxy.origin.chain import find_credentials  # noqa: PLC0415 (slow to import; see the top)

            self._resolved = await find_credentials(self._profile)
        if self._resolved is None:
            raise NoCredentials(
                "no origin credentials were found in the environment, the AWS files or the instance"
            )
        frozen = await self._resolved.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)
