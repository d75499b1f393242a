"""``shadeproxy doctor``: what the running proxy says of itself, or why there is none to ask.

The judgement is the proxy's (app/diagnosis.py), also where it runs on another machine. Without one, the
checks of ``shadeproxy check`` are tried, and who holds the directories is found out.
"""

from collections.abc import Iterator
from typing import Any

from shadeproxy.cli.check import run_checks
from shadeproxy.cli.control import ControlClient
from shadeproxy.config import Settings
from shadeproxy.core.errors import NoListener
from shadeproxy.core.locks import LOCK_NAME, holder_of

Report = dict[str, Any]


def examine(client: ControlClient, settings: Settings, *, elsewhere: bool) -> Report:
    """``{"running", "healthy", "findings", ...}``. ``elsewhere``: the proxy is not the one of ``settings``,
    so this machine has nothing to tell. Raises ShadeProxyError when the proxy refuses to answer.
    """
    try:
        return {"running": True, **client.get("/v1/doctor")}
    except NoListener as error:
        findings = [_finding("not running", str(error), "start it, or see its log for why it ended")]
    if not elsewhere:
        findings += _held(settings)
        findings += [_finding(row.name, row.detail, row.change) for row in run_checks(settings) if not row.ok]
    return {"running": False, "healthy": False, "findings": findings, "facts": {}}


def _held(settings: Settings) -> Iterator[dict[str, str]]:
    paths = {"cache.ram.path": settings.cache.ram.path, "state.path": settings.state.path}
    if settings.cache.disk.capacity:
        paths["cache.disk.path"] = settings.cache.disk.path
    for setting, path in paths.items():
        holder = holder_of(path / LOCK_NAME)
        if holder:
            yield _finding(
                f"{setting} is held",
                f"{holder} holds {path}, but no proxy answers where this configuration listens",
                "it may start, hang, or be configured otherwise: look at it, name it with --url, or end it",
            )


def _finding(name: str, cause: str, remedy: str) -> dict[str, str]:
    return {"name": name, "severity": "wrong", "cause": cause, "remedy": remedy}
