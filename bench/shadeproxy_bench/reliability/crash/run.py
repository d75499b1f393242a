"""A crash run: it uses homes one after another, and starts proxies one after another in each home. Most
proxies end by kill -9.

The seed decides the planned end of every proxy's life, and the damage between two lives. The exact moment of
a kill depends on the machine.
"""

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from shadeproxy_bench.reliability.crash import lives
from shadeproxy_bench.reliability.crash.found import Found
from shadeproxy_bench.reliability.crash.home import Home, Nursery

LIVES_EACH = 40
_SHM = Path("/dev/shm")


def crash(
    kills: int,
    seed: int,
    directory: Path,
    *,
    lives_each: int = LIVES_EACH,
    most_s: float = float("inf"),
    say: Callable[[str], None] | None = None,
) -> Found:
    """Run and kill proxies until ``kills`` were killed, ``most_s`` seconds have passed, or something went
    wrong. ``failures`` of the result says what went wrong.
    """
    found, started_s = Found(seed, kills), time.monotonic()
    nursery = Nursery()
    memory = Path(tempfile.mkdtemp(dir=_SHM if _SHM.is_dir() else None))
    try:
        for number in itertools.count():
            if found.kills >= kills or found.failures or time.monotonic() - started_s > most_s:
                break
            found.homes += 1
            rng = Random(f"{seed}/{number}")
            family = lives.Family(
                Home(directory / str(number), memory / str(number), nursery, {}), rng, found, number
            )
            try:
                family.live(min(lives_each, kills - found.kills))
            finally:
                family.close()
            for path in (directory / str(number), memory / str(number)):
                if not found.failures:
                    shutil.rmtree(path)
            if say is not None:
                said_s = time.monotonic() - started_s
                say(f"{found.kills} kills in {said_s:.0f} s, {len(found.failures)} failures")
    finally:
        nursery.close()
        if not found.failures:
            shutil.rmtree(memory)
    found.seconds = time.monotonic() - started_s
    return found
