"""Makes calls to the control listener (docs/protocol.md), with a bearer token and mostly with JSON in both
directions. Errors carry the proxy's own message.

The token is put into one header field only. It never shows in ``repr``, errors or logs.
"""

import gzip
import json
import logging
import math
import os
import random
import time
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from numbers import Integral, Real
from typing import Any
from urllib.parse import quote, urlsplit

from shadeproxy_sdk.address import check_url
from shadeproxy_sdk.channel import Address
from shadeproxy_sdk.circuit_breaker import BreakerDecision, Outage
from shadeproxy_sdk.connections import Answer, Connections
from shadeproxy_sdk.errors import Broken, ConfigError, ControlError
from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.names import other_name
from shadeproxy_sdk.shared import Once

_LOG = logging.getLogger("shadeproxy_sdk")
_MOST_NAMES = 4
_TOO_LARGE = 413
_PROBE_TIMEOUT_S = 2.0
"""Timeout of a probe, the one request that tests whether a proxy has come back."""
# Timeout of a registration. For a million keys, the proxy sends a thousand listing requests to its origin.
REGISTER_TIMEOUT_S = 600.0
_NO_ROOM = "overloaded"
HINT_MEMORY_FULL = 507
"""Status with which the proxy refuses a dataset or a job for which it has no memory left."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_CHANCE = random.SystemRandom()  # Training may have seeded the generator of the module ``random``.


def probe_timeout_s(decision: BreakerDecision, timeout_s: float) -> float:
    """Return the timeout of a request that a breaker answered with ``decision``. A probe has a short one."""
    return min(timeout_s, _PROBE_TIMEOUT_S) if decision is BreakerDecision.PROBE else timeout_s


class Control:
    """Makes calls to the control listener at ``url``."""

    def __init__(self, url: str, token: Any) -> None:
        parts = check_url(
            url,
            "a control URL",
            "http://host:port, as in http://127.0.0.1:9001",
            "give the token as Client(token=...)",
        )
        self.url = url.rstrip("/")
        self.host = str(parts.hostname)
        self.secure = parts.scheme == "https"
        if token is not None and not isinstance(token, str):
            raise ConfigError(f"the token is a {type(token).__name__}: give Client(token=...) a text")
        self._token = None if token is None else token.strip()
        if self._token and not self._token.isprintable():
            raise ConfigError(
                "the token has a line end or control character: give Client(token=...) it alone"
            )

    def __repr__(self) -> str:
        return f"Control({self.url!r})"

    def at(self, url: str) -> "Control":
        """Return a ``Control`` for another proxy, at ``url``, with the same token."""
        return Control(url, self._token)

    def address(self, near: str | None) -> Address:
        """Return the address for batch and locate calls. ``near``: path of the proxy's Unix socket, which is
        preferred to TCP.
        """
        parts = urlsplit(self.url)
        tls = parts.scheme == "https"
        return Address(self.host, parts.port or (443 if tls else 80), tls, parts.path, near)

    def headers(self) -> dict[str, str]:
        """Return the header fields of every call."""
        headers = {"accept-encoding": "identity"}
        if self._token is not None:
            # The HTTP client encodes headers as Latin-1, but the listener reads UTF-8.
            headers["authorization"] = f"Bearer {self._token}".encode().decode("latin-1")
        return headers

    def call(
        self,
        connections: Connections,
        method: str,
        path: str,
        *,
        body: bytes | dict[str, Any] | None = None,
        content_type: str = "application/json",
        extra: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Answer:
        """Make one call, with the header fields ``extra`` added. If the connection breaks, make the call once
        more. Raises Unreachable, and ControlError for a status from 300 on, except 304.
        """
        headers = {**self.headers(), **(extra or {})}
        if body is not None:
            headers["content-type"] = content_type
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        url = self.url + path
        try:
            answer = connections.send(method, url, headers=headers, body=data, timeout_s=timeout_s)
        except Broken:
            # An idle connection breaks when its server restarts. Every call is safe to repeat.
            answer = connections.send(method, url, headers=headers, body=data, timeout_s=timeout_s)
        if answer.status >= 300 and answer.status != 304:
            error = refusal(self.url, method, path, answer.status, answer.body)
            after = answer.headers.get("retry-after", "")
            error.retry_after_s = float(after) if after.isdecimal() else 0.0
            raise error
        return answer


class ControlSession:
    """Makes calls to one control listener, in any process. It holds only settings, so it can be forked and
    pickled; each process has sockets of its own in ``connections``. ``once``: the warning that the proxy does
    not answer, which a training run gives once.
    """

    def __init__(self, control: Control, *, timeout_s: float, retry_s: float, concurrency: int) -> None:
        _check(timeout_s, retry_s, concurrency)
        self._control = control
        self.timeout_s = timeout_s
        self.once = Once()
        self._retry_s, self._concurrency = retry_s, concurrency
        self._inherited: Connections | None = None
        self._connections: Connections | None = None
        self._outage: Outage | None = None

    def call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        extra: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Make one control call, with the header fields ``extra`` added. Raises Unreachable, ControlError."""
        return self._control.call(
            self.connections,
            method,
            path,
            body=body,
            content_type=content_type,
            extra=extra,
            timeout_s=timeout_s or self.timeout_s,
        )

    def register(self, manifest: Manifest) -> None:
        """Register ``manifest`` at the proxy, so that its samples can be named by id. Raises Unreachable,
        ControlError.
        """
        lines = manifest.to_jsonl()
        try:
            answer = self._put_lines(manifest, gzip.compress(lines, compresslevel=1))
        except ControlError as error:
            if error.status != _TOO_LARGE:
                raise
            # A list with many repetitions packs so well that the proxy takes it for a decompression bomb.
            # Send it unpacked.
            answer = self._put_lines(manifest, lines)
        manifest.registered = read_json(answer, self._control.url).get("digest")

    def _put_lines(self, manifest: Manifest, lines: bytes) -> Answer:
        # If another rank has registered the manifest meanwhile, the proxy sees it by the digest.
        extra = {"x-shade-manifest": manifest.digest}
        return self.put_dataset(manifest.name, lines, content_type="application/x-ndjson", extra=extra)

    def put_dataset(
        self,
        name: str,
        body: bytes | dict[str, Any],
        *,
        content_type: str = "application/json",
        extra: Mapping[str, str] | None = None,
    ) -> Answer:
        """Register a dataset. While the proxy has no room for one more, because many ranks register theirs at
        the same time, try again after growing pauses. Raises Unreachable, ControlError.
        """
        until_s, pause_s = time.monotonic() + REGISTER_TIMEOUT_S, _FIRST_PAUSE_S
        path = f"/v1/datasets/{quote(name)}"
        while True:
            try:
                return self.call(
                    "PUT", path, body, content_type=content_type, extra=extra, timeout_s=REGISTER_TIMEOUT_S
                )
            except ControlError as error:
                # A random part keeps ranks that were refused together from coming back together.
                wait_s = max(error.retry_after_s, pause_s) * _CHANCE.uniform(1.0, 1.5)
                if error.code != _NO_ROOM or time.monotonic() + wait_s > until_s:
                    raise
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def put_prefix(self, name: str, body: dict[str, Any]) -> tuple[str, Answer]:
        """Register the objects under the prefix as ``name``. If a running job uses that name for another list
        of objects, register under the next free name (``name.2``, ...). Return the name that was used, and
        the answer.
        """
        asked, number = name, 1
        while True:
            try:
                return name, self.put_dataset(name, body)
            except ControlError as error:
                number += 1
                if error.status != 409 or number > _MOST_NAMES:
                    raise
                name = other_name(asked, str(number))
                _LOG.warning("%s. This run registers the present objects as %r", error, name)

    @property
    def connections(self) -> Connections:
        """The connections of this process, made on first use."""
        current = self._connections
        if current is None or current.pid != os.getpid():
            # After a fork, the parent's connections are neither used nor closed here: closing them would need
            # locks that a thread of the parent may have held at the fork. Only the parent's segment files are
            # closed, because open files keep the memory of deleted segments.
            self._inherited = current
            parent = current
            current = self._connections = Connections(concurrency=self._concurrency, pause_s=self._retry_s)
            outage = self._outage
            if parent is not None:
                parent.transport.segments.close()
                outage = parent.control_breaker.outage
            if outage is not None:
                current.follow(outage)
        return current

    def close(self) -> None:
        """Close this process's connections. The next use opens new ones."""
        if self._connections is not None and self._connections.pid == os.getpid():
            self._connections.close()
            self._connections = None

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned must not find out once more that the proxy does not answer. On another
        # machine, or later, this knowledge would mean nothing.
        known = None if self._connections is None else self._connections.control_breaker.outage
        outage = known if get_spawning_popen() is not None else None
        return self.__dict__ | {"_connections": None, "_inherited": None, "_outage": outage}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._control.url!r})"


def read_json(answer: Answer, url: str) -> dict[str, Any]:
    """Return the JSON object in ``answer``. Raises ConfigError if there is none, because then the server at
    ``url`` is not ShadeProxy.
    """
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"The listener at {url} is not ShadeProxy's control side: check Client(url)")
    return value


def refusal(url: str, method: str, path: str, status: int, body: bytes) -> ControlError:
    """Return the error for a call that was refused, with the proxy's own message if there is one."""
    code, message, hint = "", "", ""
    try:
        told = json.loads(body)["error"]
        code, message, hint = str(told["code"]), str(told["message"]), str(told.get("hint") or "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = f"no reason given; is {url} ShadeProxy's control side?"
    if status in {401, 403} and not hint:
        hint = "give Client(token=...) the token of [control]"
    text = f"{method} {path}: {message}" + (f" ({hint})" if hint else "")
    return ControlError(status, code, text)


def _check(timeout_s: Any, retry_s: Any, concurrency: Any) -> None:
    """Raise ConfigError for a wrong argument of ``ControlSession``."""
    if not (isinstance(timeout_s, Real) and 0 < float(timeout_s) < math.inf):
        raise ConfigError(f"timeout_s {timeout_s!r}: give a number of seconds above 0")
    if not (isinstance(retry_s, Real) and 0 <= float(retry_s) < math.inf):
        raise ConfigError(f"retry_s {retry_s!r}: give a number of seconds from 0 on")
    if not (isinstance(concurrency, Integral) and int(concurrency) >= 1):
        raise ConfigError(f"concurrency {concurrency!r}: give a whole number from 1 on")
