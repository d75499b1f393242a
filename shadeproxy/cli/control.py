"""A small, blocking client of the control listener. It sends and receives JSON, and needs only the standard
library.
"""

import http.client
import json
import ssl
from typing import Any
from urllib.parse import SplitResult, urlsplit

from shadeproxy.core.errors import ConfigError, NoListener, ShadeProxyError, UnknownName

_TIMEOUT_S = 30.0
LONG_TIMEOUT_S = 900.0
"""Timeout of calls for which the proxy must look at every cached page before it answers."""


class ControlClient:
    """Client of a control listener. It opens a new connection for each request. ``token``: the bearer token
    that it sends; it never shows the token.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = _split(url)
        if "@" in (url if parts is None else parts.netloc):  # Do not show a text that contains a password.
            raise ConfigError("--url: write it as http://127.0.0.1:9001, without user and password")
        if parts is None:
            raise ConfigError(f"--url {url}: write it as http://127.0.0.1:9001")
        self.url = url.rstrip("/")
        self._parts = parts
        # The value is bytes: http.client would encode a text as Latin-1, but the listener expects UTF-8.
        self._headers = {"Authorization": f"Bearer {token}".encode()} if token else {}

    def get(self, path: str, *, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
        """Return the JSON object at ``path``. Raises UnknownName, or an error that says what to change."""
        return self._send("GET", path, None, timeout_s)

    def post(self, path: str, body: dict[str, Any], *, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
        """Send ``body`` and return the answer. Raises a ShadeProxyError that says what to change."""
        return self._send("POST", path, json.dumps(body).encode(), timeout_s)

    def delete(self, path: str) -> dict[str, Any]:
        """Send DELETE and return the answer. Raises a ShadeProxyError that says what to change."""
        return self._send("DELETE", path, None)

    def _send(
        self, method: str, path: str, body: bytes | None, timeout_s: float = _TIMEOUT_S
    ) -> dict[str, Any]:
        https = self._parts.scheme == "https"
        connect = http.client.HTTPSConnection if https else http.client.HTTPConnection
        headers = self._headers | ({"Content-Type": b"application/json"} if body is not None else {})
        connection = connect(self._parts.netloc, timeout=timeout_s)
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, body=body, headers=headers)
            response = connection.getresponse()
            text = response.read()
        except ssl.SSLError as error:
            raise NoListener(
                f"{self.url} does not speak TLS as it should ({error.reason})",
                remedy="the control listener itself speaks plain HTTP: write --url http://...",
            ) from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
            raise NoListener(
                f"no control listener answers at {self.url} ({reason})",
                remedy="start it with `shadeproxy serve`, or name another with --url",
                url=self.url,
                reason=reason,
            ) from None
        finally:
            connection.close()
        return self._understand(response.status, text)

    def _understand(self, status: int, text: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        told = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or (status >= 400 and not isinstance(told, dict)):
            raise ShadeProxyError(
                f"{self.url} answered {status}, but not as a control listener does;"
                " name the control listener with --url (by default port 9001, S3 is 9000)"
            )
        if status in {401, 403}:
            which = "another" if self._headers else "a"
            raise ShadeProxyError(
                f"{self.url} asks for {which} bearer token: set control.token as the proxy has it,"
                " for example --token env:NAME"
            )
        if status >= 400:
            error = told or {}
            hint, message = error.get("hint"), error.get("message", f"status {status}")
            if error.get("code") == "unknown_name":
                raise UnknownName(message, hint=hint or "")
            raise ShadeProxyError(f"{message}; {hint}" if hint else message)
        return answer


def _split(url: str) -> SplitResult | None:
    """Return the parts of ``url``, or None if no listener can have this URL. Port 0 stands for a port that is
    not known yet.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # The URL has unclosed brackets, or an invalid port.
        return None
    is_plain = url.isprintable() and " " not in url
    return parts if parts.scheme in {"http", "https"} and host and is_plain else None
