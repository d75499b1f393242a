"""Opens the tracer of a process for ``[telemetry.otel]``. Imports the packages of the extra ``otel`` only if
that section is enabled.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from shadeproxy import __version__
from shadeproxy.config import Settings
from shadeproxy.config.otel import Otel
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import ConfigError
from shadeproxy.telemetry.otel import OtelTracer

INSTALL = "pip install 'shadeproxy[otel]', or leave telemetry.otel.enabled out"
_MISSING = f"telemetry.otel.enabled = true needs packages that are not installed: {INSTALL}"


async def open_tracer(settings: Settings, clock: Clock, stack: AsyncExitStack) -> OtelTracer | None:
    """Return the tracer of this process, which ``stack`` closes; None if otel spans are off. Raises
    ConfigError.
    """
    section = settings.telemetry.otel
    if not section.enabled:
        return None
    tracer, close = await asyncio.to_thread(_make_tracer, section, clock)
    stack.push_async_callback(asyncio.to_thread, close)
    return tracer


def is_installed() -> bool:
    """Return whether the extra ``otel`` is installed. If it is, import it."""
    try:
        import shadeproxy.telemetry.otel_sdk  # noqa: F401, PLC0415 - an extra
    except ImportError:
        return False
    return True


def _make_tracer(section: Otel, clock: Clock) -> tuple[OtelTracer, Callable[[], None]]:
    """Load the SDK of OpenTelemetry, which takes a third of a second. Return a tracer and the function that
    closes it. Raises ConfigError.
    """
    headers = section.resolve_headers()
    try:
        from shadeproxy.telemetry.otel_sdk import SdkTracer  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(_MISSING) from None
    tracer = SdkTracer(section.endpoint, headers, version=__version__, clock=clock)
    return tracer, tracer.close
