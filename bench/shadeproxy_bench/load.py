"""Load generators that keep a server busy while its CPU is counted: wrk where installed, else our own
reader.

Servers are compared in saturation. wrk spends so little CPU that it saturates even the fastest server. Our
reader is slower: under it a fast server sleeps and wakes for single requests, which costs the server more.
Both generators cycle through the same requests on keep-alive connections. wrk does not look at bodies, so a
measurement with wrk also compares a sample of bodies in the same round (``reader``).
"""

import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reader import read
from shadeproxy_bench.server import Served

PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
"""PATH with the directories in which Debian installs servers; an ordinary user's PATH lacks them."""

_SCRIPT = """
local file = io.open("{requests}", "rb")
local data = file:read("*a")
file:close()
local requests, start = {{}}, 1
while true do
  local stop = data:find("\\0", start, true)
  if not stop then break end
  requests[#requests + 1] = data:sub(start, stop - 1)
  start = stop + 1
end
local turn, count = 0, #requests
request = function()
  turn = turn % count + 1
  return requests[turn]
end
done = function(summary)
  local e = summary.errors
  io.write(string.format("\\nresult {{\\"requests\\": %d, \\"bytes\\": %.0f, \\"errors\\": %d}}\\n",
    summary.requests, summary.bytes, e.connect + e.read + e.write + e.status + e.timeout))
end
"""

Requests = Sequence[tuple[Piece, bytes]]


class Load(Protocol):
    """A load generator. ``name``: its name in the results."""

    name: str

    def run(self, server: Served, requests: Requests, *, connections: int, seconds: float) -> int:
        """Cycle through ``requests``. Return how many requests were answered. Raises BenchError for a wrong
        answer.
        """
        ...


class WrkLoad:
    """The load generator wrk, with one thread."""

    name = "wrk -t1"

    def __init__(self, program: str) -> None:
        self._program = program

    def run(self, server: Served, requests: Requests, *, connections: int, seconds: float) -> int:
        with tempfile.TemporaryDirectory(prefix="shadeproxy-bench-") as directory:
            data, script = Path(directory, "requests"), Path(directory, "requests.lua")
            data.write_bytes(b"".join(request + b"\0" for _, request in requests))
            script.write_text(_SCRIPT.format(requests=data))
            # wrk accepts only whole seconds.
            options = ["-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
            done = subprocess.run(
                [self._program, *options, "-s", str(script), server.url],
                capture_output=True,
                text=True,
                check=False,
            )
        lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
        if done.returncode or not lines:
            raise BenchError(f"wrk failed: {done.stderr.strip() or done.stdout.strip()}")
        result = json.loads(lines[-1].removeprefix("result "))
        shortest = min(len(piece.body()) for piece, _ in requests)
        if result["errors"] or result["bytes"] < result["requests"] * shortest:
            raise BenchError(f"wrk saw {result['errors']} errors in {result['requests']} answers")
        return int(result["requests"])


class ReaderLoad:
    """Our own client as the load generator. It compares every body."""

    name = "a Python client (wrk is not installed)"

    def run(self, server: Served, requests: Requests, *, connections: int, seconds: float) -> int:
        cycle = itertools.cycle([(request, piece.body()) for piece, request in requests])
        reading = read(
            server.address, cycle, connections=connections, seconds=seconds, trusted=server.trusted
        )
        return reading.requests


def best_load() -> Load:
    program = shutil.which("wrk", path=PATH)
    return ReaderLoad() if program is None else WrkLoad(program)
