"""A real ``shadeproxy serve`` in a process of its own, and helpers to observe it."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config

from tests.support.copied import COPY, Copy, original

SERVE = (sys.executable, "-m", "shadeproxy")
COPIED_SERVE = (COPY, "-m", "shadeproxy")


@dataclass
class Served:
    """One proxy in a process of its own."""

    arguments: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | Copy | None = None
    s3: str = ""
    control: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    token: str = ""
    """The control listener's token; "" if it needs none."""
    program: tuple[str, ...] = SERVE
    clients: list[Any] = field(default_factory=list)

    def start(self) -> None:
        first, *arguments = [*self.program, "serve", *self.arguments]
        environment = os.environ | self.environment
        with self.log.open("ab") as log:
            start = log.tell()
            if first == COPY:
                self.process = original().start(arguments, stderr=log.fileno(), environment=environment)
            else:
                self.process = subprocess.Popen([first, *arguments], stderr=log, env=environment)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            lines = self.log.read_bytes()[start:].splitlines()
            ready = [entry for line in lines if (entry := _parse(line)).get("event") == "ready"]
            if ready:
                self.s3, self.control = ready[0]["s3"], ready[0]["control"]
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"serve did not become ready:\n{self.log.read_text()}")

    def start_whole(self) -> None:
        """Start, and wait until all pages are recovered (ADR 0006). Before that, a read of a cached page may
        miss.
        """
        self.start()
        deadline = time.monotonic() + 60
        while self.stats()["gauges"]["recovering_segments"]:
            assert time.monotonic() < deadline, "the pages do not come in"
            time.sleep(0.01)

    def stop(self, how: int = signal.SIGTERM) -> int:
        assert self.process is not None
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(30)

    def client(self, **kwargs: Any) -> Any:
        """Return a boto3 client, which signs only if keys are given. ``stop`` closes the client's
        connections.
        """
        config = Config(signature_version=UNSIGNED) if "aws_access_key_id" not in kwargs else None
        client = boto3.client("s3", endpoint_url=self.s3, region_name="us-east-1", config=config, **kwargs)
        self.clients.append(client)
        return client

    def get(self, path: str) -> Any:
        return json.loads(self.call("GET", path))

    def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30) -> bytes:
        """Send a control call with the token, and ``body`` as JSON. Return the body of the answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.control + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with opened(request, timeout_s=timeout_s) as answer:
            found: bytes = answer.read()
        return found

    def stats(self) -> dict[str, Any]:
        return self.get("/v1/stats")


def _parse(line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:
        return {}


MakeServed = Callable[..., Served]


def wait_for(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """Wait until ``condition`` is true and return its value.

    The pauses grow with the time that has passed, because each question costs CPU here and in a proxy.
    """
    began_s = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - began_s
        assert waited_s < limit_s, "it does not come"
        time.sleep(min(max(0.02, waited_s / 20), 0.2))
    return found


def log_of(served: Any, event: str = "") -> list[dict[str, Any]]:
    """Return the lines of a proxy's JSON log that are of one event, or all lines."""
    lines = []
    for line in served.log.read_bytes().splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return [line for line in lines if not event or line.get("event") == event]


def names(report: dict) -> set[str]:
    return {finding["name"] for finding in report["findings"]}


def opened(request: urllib.request.Request | str, *, timeout_s: float) -> Any:
    """Return the answer to a request. Raises HTTPError, which has the body of the answer but no connection.

    A connection would stay open, because tests keep errors until the garbage collector finds them.
    """
    try:
        return urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            body = io.BytesIO(error.read())
        raise urllib.error.HTTPError(error.url, error.code, error.reason, error.headers, body) from None


def readyz(served) -> tuple[int, dict]:
    try:
        with opened(served.control + "/readyz", timeout_s=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
