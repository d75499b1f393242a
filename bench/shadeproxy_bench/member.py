"""``shadeproxy serve`` of a cluster that waits for late writes of dead proxies for a given time, and not for
a minute: ``python -m shadeproxy_bench.member``.

Meanwhile a proxy checks objects with the origin at every read, so hits of a new proxy could not be measured
before the minute is over.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shadeproxy.app import clustering, serve
from shadeproxy.cluster.timing import Timing
from shadeproxy.config import Settings


def main(prepare: Callable[[float], None] = lambda _late_write_s: None) -> None:
    """Serve. ``prepare`` is called first, with the seconds after which a late write is over."""
    parser = argparse.ArgumentParser(description="A proxy of a measured cluster.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--late-write", type=float, required=True, help="seconds until a late write is over")
    options = parser.parse_args()
    prepare(options.late_write)
    vars(clustering)["Timing"] = partial(Timing, late_write_s=options.late_write)
    serve(Settings.load(options.config))


if __name__ == "__main__":
    main()
