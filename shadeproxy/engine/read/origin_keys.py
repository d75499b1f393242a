"""Sends a worker the credentials with which it signs its own requests to the origin."""

from collections.abc import Callable

from shadeproxy.core.sigv4 import Credentials
from shadeproxy.engine.read.fill_messages import OriginKeys, Outbox
from shadeproxy.origin.credentials import CredentialProvider


class KeySender:
    """Sends the credentials of ``provider()`` through ``outbox``: first once, and then after each change."""

    def __init__(self, provider: Callable[[], CredentialProvider | None], outbox: Outbox) -> None:
        self._provider = provider
        self._outbox = outbox
        self._sent: OriginKeys | None = None

    def send_now(self) -> bool:
        """Send the credentials if they have changed. Return False if the provider has none yet."""
        provider = self._provider()
        if provider is None or not provider.is_ready:
            return False
        self._send(provider.current)
        return True

    async def send(self) -> None:
        """Send the credentials if they have changed. Wait until the provider has some. Raises as
        ``CredentialProvider.credentials``.
        """
        provider = self._provider()
        assert provider is not None, "the shared upstream always has one"
        self._send(await provider.credentials())

    def _send(self, keys: Credentials | None) -> None:
        message = (
            OriginKeys("", "", None)
            if keys is None
            else OriginKeys(keys.access_key, keys.secret_key, keys.session_token)
        )
        if message != self._sent:
            self._sent = message
            self._outbox.send(message)
