"""Calls to the control listener (docs/protocol.md): JSON in and out, bearer token, errors with the proxy's
words.

The token goes into one header and nowhere else: not into ``repr``, errors or logs.
"""

import json
from typing import Any
from urllib.parse import urlsplit

from shadeproxy_sdk.connections import Answer, Broken, Connections
from shadeproxy_sdk.errors import ConfigError, ControlError
from shadeproxy_sdk.gate import Passage

_PROBE_TIMEOUT_S = 2.0
"""How long the one request waits that finds out whether a proxy has come back."""


def probe_timeout_s(passage: Passage, timeout_s: float) -> float:
    """The wait that ``passage`` allows, in seconds."""
    return min(timeout_s, _PROBE_TIMEOUT_S) if passage is Passage.PROBE else timeout_s


class Control:
    """The control listener at ``url``."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(
                f"{url!r} is not a control URL: write http://host:port, as in http://127.0.0.1:9001"
            )
        self.url = url.rstrip("/")
        self.host = parts.hostname
        self._token = token

    def __repr__(self) -> str:
        return f"Control({self.url!r})"

    def call(
        self,
        connections: Connections,
        method: str,
        path: str,
        *,
        body: bytes | dict[str, Any] | None = None,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> Answer:
        """One call, tried twice when the connection breaks. Raises Unreachable, ControlError for 4xx and
        5xx.
        """
        headers = {"accept-encoding": "identity"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["content-type"] = content_type
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        url = self.url + path
        try:
            answer = connections.send(method, url, headers=headers, body=data, timeout_s=timeout_s)
        except Broken:
            # What an idle connection does when its server restarted. Every call is safe to repeat.
            answer = connections.send(method, url, headers=headers, body=data, timeout_s=timeout_s)
        if answer.status >= 300:
            raise _refusal(self.url, method, path, answer)
        return answer


def read_json(answer: Answer, url: str) -> dict[str, Any]:
    """The JSON object in ``answer``. Raises ConfigError when something else came, as from another server."""
    try:
        value = json.loads(answer.body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"What listens at {url} is not ShadeProxy's control side: check Client(url)")
    return value


def _refusal(url: str, method: str, path: str, answer: Answer) -> ControlError:
    code, message, hint = "", "", ""
    try:
        told = json.loads(answer.body)["error"]
        code, message, hint = str(told["code"]), str(told["message"]), str(told.get("hint") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"no reason given; is {url} ShadeProxy's control side?"
    if answer.status in {401, 403} and not hint:
        hint = "give Client(token=...) the token of [control]"
    text = f"{method} {path}: {message}" + (f" ({hint})" if hint else "")
    return ControlError(answer.status, code, text)
