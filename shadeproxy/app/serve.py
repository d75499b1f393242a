"""``shadeproxy serve``: a proxy in the foreground until SIGTERM or SIGINT."""

import asyncio
import signal

import structlog
import uvloop

from shadeproxy.app.limits import raise_descriptor_limit
from shadeproxy.app.proxy import Proxy
from shadeproxy.config import Settings
from shadeproxy.telemetry.log import configure_logging

_log = structlog.get_logger(__name__)


def serve(settings: Settings) -> None:
    """Run until told to stop; requests under way are finished. Raises ConfigError before it listens."""
    telemetry = settings.telemetry
    configure_logging(level=telemetry.log_level, json=telemetry.log_format == "json")
    raise_descriptor_limit()
    uvloop.run(_run(settings))


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    proxy = Proxy(settings)
    await proxy.start()
    await stop.wait()
    _log.info("stopping", hint="requests under way are finished; a second signal does not hurry it")
    await proxy.stop()
    _log.info("stopped")
