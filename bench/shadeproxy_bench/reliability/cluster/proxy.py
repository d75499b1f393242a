"""``shadeproxy serve`` that waits for late writes as long as they can be late in this run.

The product waits for a minute, in which it checks each affected object with the origin at every read. Most
objects of a run with a fault every few seconds would always be in that state, and their caching not tested.
"""

import argparse
from functools import partial
from pathlib import Path

from shadeproxy.app import clustering, serve
from shadeproxy.cluster.timing import Timing
from shadeproxy.config import Settings
from shadeproxy.engine.read import writes


def main() -> None:
    parser = argparse.ArgumentParser(description="A proxy of a run of the cluster.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--late-write", type=float, required=True, help="seconds until a late write is over")
    options = parser.parse_args()
    vars(clustering)["Timing"] = partial(Timing, late_write_s=options.late_write)
    vars(writes)["_UNKNOWN_OUTCOME_S"] = options.late_write
    serve(Settings.load(options.config))


if __name__ == "__main__":
    main()
