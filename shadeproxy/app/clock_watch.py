"""Watches whether the machine's clock is set back. The freshness rules judge the age of pages by this clock.

Law: if the time of a page's last check lies in the future, the check counts as made long ago. Otherwise the
page would count as fresh until the clock has caught up, which may take years.
"""

import numpy as np
import structlog
from numpy.typing import NDArray

from shadeproxy.core.clock import Clock
from shadeproxy.engine.engine import Engine
from shadeproxy.engine.storage.distrust import age_later_checks

_log = structlog.get_logger(__name__)

_LOOK_S = 10.0
_STEP_S = 1.0
"""The clock may be set back by this much without a check. A page then counts as fresh only this much
longer.
"""


async def watch_clock(engine: Engine, clock: Clock) -> None:
    """Look at the clock every ``_LOOK_S`` seconds. Wait with the first look until all pages of the last
    process are recovered: since that process checked them, the clock may have been set back.
    """
    await engine.cache.recovery.over()
    ahead_s = 0.0
    while True:
        now_s, former_s = clock.now_s(), ahead_s
        ahead_s = now_s - clock.monotonic_s()
        pages = age_later_checks(engine.cache.residents, now_s + _STEP_S)
        if pages or ahead_s < former_s - _STEP_S:
            _log.warning("the clock was set back", pages_to_check=pages)
            # Drop page handles, metadata and verdicts too: their times may also lie in the future now.
            engine.distrust(_all)
        await clock.sleep(_LOOK_S)


def _all(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return, for every page, that it keeps the time of its last check."""
    return np.ones(len(hashes), np.bool_)
