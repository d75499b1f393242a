"""``shadeproxy serve`` that waits for late writes as long as they can be late in this run.

The product waits for a minute, in which it checks each affected object with the origin at every read. Most
objects of a run with a fault every few seconds would always be in that state, and their caching not tested.
"""

import argparse
import asyncio
import gc
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from shadeproxy.app import clustering, serve
from shadeproxy.cluster.timing import Timing
from shadeproxy.config import Settings
from shadeproxy.engine.read import writes


def main() -> None:
    parser = argparse.ArgumentParser(description="A proxy of a run of the cluster.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--late-write", type=float, required=True, help="seconds until a late write is over")
    options = parser.parse_args()
    signal.signal(signal.SIGUSR2, _tell_tasks)
    vars(clustering)["Timing"] = partial(Timing, late_write_s=options.late_write)
    vars(writes)["_UNKNOWN_OUTCOME_S"] = options.late_write
    serve(Settings.load(options.config))


def _tell_tasks(_number: int, _frame: object) -> None:
    """Write where each task waits to the log of this process, which does not end."""
    for task in [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and not one.done()]:
        print(task.get_name(), file=sys.stderr)
        inner: Any = task.get_coro()
        while (frame := getattr(inner, "cr_frame", None)) is not None:
            print(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}", file=sys.stderr)
            inner = inner.cr_await
    sys.stderr.flush()


if __name__ == "__main__":
    main()
