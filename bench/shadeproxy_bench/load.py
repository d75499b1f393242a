"""Load generators that keep a server busy while its CPU is counted: wrk where it is installed, else our own
reader.

Servers are compared while they are saturated. wrk spends so little CPU that it saturates even the fastest
server. Our reader is slower: under it a fast server sleeps and wakes for single requests, which costs the
server more. Both generators cycle through the same requests on keep-alive connections. wrk does not look at
bodies, so a measurement with wrk also compares a sample of bodies in the same round, by ``reader``.
"""

import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.reader import read
from shadeproxy_bench.server import Served

PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
"""PATH with the directories in which Debian installs servers; an ordinary user's PATH lacks them."""

_SCRIPT = """
local threads, requests, count = {{}}, {{}}, 0
setup = function(thread)
  thread:set("number", #threads)
  threads[#threads + 1] = thread
end
init = function()
  local file = io.open("{requests}", "rb")
  local data = file:read("*a")
  file:close()
  local start, place = 1, 0
  while true do
    local stop = data:find("\\0", start, true)
    if not stop then break end
    if place % {threads} == number then requests[#requests + 1] = data:sub(start, stop - 1) end
    start, place = stop + 1, place + 1
  end
  count = #requests
  -- wrk takes a request of the first thread that it does not send.
  asked = number == 0 and -1 or 0
end
request = function()
  asked = asked + 1
  return requests[(asked - 1) % count + 1]
end
done = function(summary)
  local e, shares = summary.errors, {{}}
  for place, thread in ipairs(threads) do shares[place] = thread:get("asked") end
  io.write(string.format(
    "\\nresult {{\\"requests\\": %d, \\"bytes\\": %.0f, \\"errors\\": %d, \\"asked\\": [%s]}}\\n",
    summary.requests, summary.bytes, e.connect + e.read + e.write + e.status + e.timeout,
    table.concat(shares, ", ")))
end
"""

Requests = Sequence[tuple[Piece, bytes]]


class Answered(NamedTuple):
    """The number of answers of a run. ``total``: of all threads together. ``of_threads``: of each thread.
    Thread n of m has the requests n, n + m, ... and cycles through them. If there are several threads, the
    count of a thread may be off by one or two.
    """

    total: int
    of_threads: tuple[int, ...]


class Load(Protocol):
    """A load generator. ``name``: its name in the results."""

    name: str

    def run(self, server: Served, requests: Requests, *, connections: int, seconds: float) -> Answered:
        """Cycle through ``requests`` for ``seconds``, and return the number of answers. Raises BenchError for
        a wrong answer.
        """
        ...


class WrkLoad:
    """The load generator wrk. ``connections`` of a run must be a multiple of ``threads``."""

    def __init__(self, program: str, *, threads: int = 1) -> None:
        self.name = f"wrk -t{threads}"
        self._program = program
        self._threads = threads

    def run(self, server: Served, requests: Requests, *, connections: int, seconds: float) -> Answered:
        with tempfile.TemporaryDirectory(prefix="shadeproxy-bench-") as directory:
            data, script = Path(directory, "requests"), Path(directory, "requests.lua")
            data.write_bytes(b"".join(request + b"\0" for _, request in requests))
            script.write_text(_SCRIPT.format(requests=data, threads=self._threads))
            # wrk accepts only whole seconds.
            options = [f"-t{self._threads}", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
            options += ["--timeout", "30s"]
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
        count = int(result["requests"])
        if self._threads == 1:
            return Answered(count, (count,))
        # At the end each connection waits for an answer to a request that its thread has counted.
        waiting = connections // self._threads
        return Answered(count, tuple(max(0, int(asked) - waiting) for asked in result["asked"]))


class ReaderLoad:
    """Our own client as the load generator. It compares every body."""

    name = "a Python client (wrk is not installed)"

    def run(self, server: Served, requests: Requests, *, connections: int, seconds: float) -> Answered:
        cycle = itertools.cycle([(request, piece.body()) for piece, request in requests])
        reading = read(
            server.address, cycle, connections=connections, seconds=seconds, trusted=server.trusted
        )
        return Answered(reading.requests, (reading.requests,))


def best_load(*, threads: int = 1) -> Load:
    """Return wrk with ``threads`` threads; where wrk is not installed, our own client, which has one."""
    program = shutil.which("wrk", path=PATH)
    return ReaderLoad() if program is None else WrkLoad(program, threads=threads)
