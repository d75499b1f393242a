"""``shadeproxy serve`` with a wait for late writes of dead proxies that is shorter than the minute of the
product: ``python -m shadeproxy_bench.member``.

While a proxy waits for late writes, it checks objects with the origin at every read. With the wait of the
product, hits of a new proxy could be measured only after a minute.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shadeproxy.app import clustering
from shadeproxy.app.serve import serve
from shadeproxy.cluster.timing import Timing
from shadeproxy.config import Settings


def main(prepare: Callable[[float], None] = lambda _late_write_s: None) -> None:
    """Call ``prepare``, and then serve. The argument of ``prepare`` is the number of seconds for which the
    proxy waits for late writes.
    """
    parser = argparse.ArgumentParser(description="A proxy of a measured cluster.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--late-write", type=float, required=True, help="seconds until a late write is over")
    options = parser.parse_args()
    prepare(options.late_write)
    vars(clustering)["Timing"] = partial(Timing, late_write_s=options.late_write)
    serve(Settings.load(options.config))


if __name__ == "__main__":
    main()
