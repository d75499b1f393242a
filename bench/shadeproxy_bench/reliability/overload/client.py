"""The clients of one phase, in one process. The process prints the clients' results as JSON."""

import argparse
import itertools
import sys

import msgspec
import uvloop

from shadeproxy_bench import machine
from shadeproxy_bench.reliability.overload.phases import PHASES, Options
from shadeproxy_bench.reliability.overload.told import Told

NUMBERS = 5_000_000
"""Number of objects that are reserved for each phase."""


async def _play(phase: str, options: Options) -> Told:
    return await PHASES[phase](options)


def main() -> None:
    """Play one phase, and print the results of its clients."""
    parser = argparse.ArgumentParser(description="The clients of one phase of an overload run.")
    parser.add_argument("--phase", choices=PHASES, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="share of all numbers of connections")
    parser.add_argument("--upload", type=int, default=10 << 30, help="bytes of the big body")
    given = parser.parse_args()
    machine.raise_descriptor_limit()
    first = list(PHASES).index(given.phase) * NUMBERS + 1000
    options = Options(
        ("127.0.0.1", given.port), given.seconds, itertools.count(first), upload_bytes=given.upload
    )
    told = uvloop.run(_play(given.phase, options.scaled(given.scale)))
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")


if __name__ == "__main__":
    main()
