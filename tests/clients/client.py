"""The interface by which the checks use any client: operations by name, and errors as text.

A client may offer these operations, with the arguments that the checks give. ``put(path, key)`` and
``get(key, path)`` transfer a file. ``part(key, start, stop, path)`` reads a half-open range into a file.
``resume(key, path)`` completes a file that has the first half of the object. ``listing(prefix)`` returns
[key, size] pairs. There are also ``delete(keys)``, ``sync_up(directory, prefix)`` and ``sync_down(prefix,
directory)``. An operation whose name begins with ``try_`` is a check for this client only. ``try_x(scratch)``
raises if something is wrong, and its docstring says what it does.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from tests.support.routes import Route

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 300


class ClientFailed(Exception):
    """The client reported an error. The text is the client's own."""


class Absent(Exception):
    """The client is not installed. The text names the program or library that was not found."""


class Client(Protocol):
    version: str
    offers: dict[str, str]
    """The operations that the client offers: names with their docstrings."""

    def call(self, operation: str, **arguments: Any) -> Any:
        """Call an operation. Raises ClientFailed."""

    def close(self) -> None: ...


class Library:
    """A Python library, which runs in a process of its own (see libraries/child.py)."""

    def __init__(self, module: str, route: Route, bucket: str, home: Path) -> None:
        where = {
            "endpoint": route.endpoint,
            "access_key": route.access_key,
            "secret_key": route.secret_key,
            "ca_file": route.ca_file,
            "bucket": bucket,
        }
        self._log = (home / f"{module}.log").open("a+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.libraries.child", module, json.dumps(where)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=REPOSITORY,
            env=route.environment(home),
        )  # fmt: skip
        hello = self._answer()
        self.version: str = hello["version"]
        self.offers: dict[str, str] = hello["offers"]

    def call(self, operation: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"operation": operation, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise ClientFailed(f"the process ended: {self._log.read()[-2000:]}")
        answer = json.loads(line)
        if "absent" in answer:
            self.close()
            raise Absent(answer["absent"])
        if "error" in answer:
            raise ClientFailed(answer["error"])
        return answer["answer"]

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._log.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
