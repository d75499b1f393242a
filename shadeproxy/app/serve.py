"""``shadeproxy serve``: runs a proxy in the foreground until SIGTERM or SIGINT. SIGHUP reloads its
settings.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from threading import Timer
from typing import NoReturn

import structlog
import uvloop

from shadeproxy.app.address_space import no_memory
from shadeproxy.app.bus_errors import explain_bus_errors
from shadeproxy.app.draining import DRAIN_S
from shadeproxy.app.fitting import require_fit
from shadeproxy.app.limits import collect_less, raise_descriptor_limit
from shadeproxy.app.proxy import Proxy
from shadeproxy.app.reload import ConfigReloader
from shadeproxy.app.reloadable import configure_log
from shadeproxy.config import Settings
from shadeproxy.tiers.medium import Calls

_log = structlog.get_logger(__name__)
SLOW_START_S = 10.0
"""After this time the log says that a start takes long. Recovery of the tiers is no part of the start."""
STOP_S = 2 * DRAIN_S + 30.0
"""The most time that a stop takes: the S3 listener and that for other proxies drain one after the other."""


def serve(
    settings: Settings,
    load: Callable[[], Settings] | None = None,
    *,
    calls: Mapping[str, Calls] | None = None,
) -> None:
    """Run a proxy until SIGTERM or SIGINT; requests under way are finished. Raises ConfigError before it
    listens.

    ``load`` reads the settings again, from the same sources. ``calls``: by the name of a tier, the system
    calls on its segments, if not the kernel's.
    """
    configure_log(settings.telemetry)
    raise_descriptor_limit()
    explain_bus_errors()
    slow, limit = Timer(SLOW_START_S, _warn_of_start), Timer(STOP_S, _end_now)
    slow.daemon = limit.daemon = True
    slow.start()
    try:
        require_fit(settings)
        uvloop.run(_run(settings, load or (lambda: settings), calls, slow, limit))
    except MemoryError as error:
        raise no_memory() from error
    finally:
        slow.cancel()
        limit.cancel()


async def _run(
    settings: Settings,
    load: Callable[[], Settings],
    calls: Mapping[str, Calls] | None,
    slow: Timer,
    limit: Timer,
) -> None:
    """Run a proxy until a signal stops it. ``slow``: cancelled when the proxy has started. ``limit``: started
    when the stop begins.
    """
    stop, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, again.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # The command has blocked it.
    proxy = Proxy(settings, calls=calls)
    await proxy.start()
    slow.cancel()
    collect_less()
    reloading = asyncio.create_task(_reload(proxy.reloader, again, load), name="reload")
    await stop.wait()
    limit.start()
    reloading.cancel()
    _log.info("stopping", hint="requests under way are finished; a second signal does not hurry it")
    await proxy.stop()
    _log.info("stopped")


def _warn_of_start() -> None:
    hint = "`shadeproxy check` with the same settings says whether a disk hangs"
    _log.warning("the start takes long", after_s=SLOW_START_S, hint=hint)


def _end_now() -> NoReturn:
    """End the process, because a stop waits for a disk that hangs. The next start finds the caches as after
    kill -9.
    """
    hint = "see the kernel's log; a restart checks the cached pages, as after kill -9"
    _log.error("a disk hangs, stopped without it", after_s=STOP_S, hint=hint)
    os._exit(1)


async def _reload(reloader: ConfigReloader, again: asyncio.Event, load: Callable[[], Settings]) -> None:
    while True:
        await again.wait()
        again.clear()
        await reloader.reload(load)
