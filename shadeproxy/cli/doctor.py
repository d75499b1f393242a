"""``shadeproxy doctor``: shows the diagnosis of a running proxy, or the reason why no proxy answers.

The proxy itself makes the diagnosis (app/diagnosis.py), so the command also works for a proxy on another
machine. If no proxy answers, the command makes the checks of ``shadeproxy check``, and finds the processes
that hold the directories. It checks the origin only if one is configured. One finding is made by this command
and not by the proxy: that of jobs that wait for data. It needs a replay of their profiles, which takes a
second of processor time.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shadeproxy.cli.check import names_no_store, run_checks
from shadeproxy.cli.control import ControlClient
from shadeproxy.cli.directories import DirectoryLooks
from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError, NoListener, UnknownName
from shadeproxy.core.units import format_count

if TYPE_CHECKING:
    from shadeproxy.plan.profile import Profile

Report = dict[str, Any]
_MOST_ADVISED = 16  # The advice for one job takes up to a second.


def examine(client: ControlClient, settings: Settings, *, elsewhere: bool) -> Report:
    """Return ``{"running", "healthy", "findings", ...}``. Raises ShadeProxyError if the proxy refuses to
    answer.

    ``elsewhere``: the user named the proxy by a URL, so it may not be the proxy of ``settings``. Checks on
    this machine would then say nothing about it, and none is made.
    """
    try:
        report = {"running": True, **client.get("/v1/doctor")}
    except NoListener as error:
        findings = [_finding("not running", *_stopped(error))]
    else:
        report["findings"] = [*report["findings"], *_waiting(client)]
        return report
    if not elsewhere:
        looks = DirectoryLooks(settings)
        findings += _held(looks)
        findings += _checked(settings, looks)
    return {"running": False, "healthy": False, "findings": findings, "facts": {}}


def _waiting(client: ControlClient) -> Iterator[dict[str, str]]:
    """Yield a finding for each job in use that waits for its data. If there are more than ``_MOST_ADVISED``
    such jobs, the last finding names the rest of them, without a remedy for each.
    """
    # This import loads numpy, which takes 100 ms.
    from shadeproxy.cli.plan import profile_of  # noqa: PLC0415
    from shadeproxy.plan.advice import advise, waits_of  # noqa: PLC0415

    waiting: list[tuple[float, Profile]] = []
    for name in [job["job"] for job in client.get("/v1/jobs")["jobs"] if job["in_use"]]:
        # The proxy may have deleted the job meanwhile. A proxy of another version may send other fields.
        with suppress(UnknownName, ConfigError):
            profile = profile_of(client, name)
            waiting += [(waits, profile)] if (waits := waits_of(profile)) is not None else []
    waiting.sort(key=lambda one: -one[0])
    for _, profile in waiting[:_MOST_ADVISED]:
        advice = advise(profile)
        if advice is not None:
            yield _finding("waiting job", advice.cause, advice.remedy, severity="warning")
    if more := waiting[_MOST_ADVISED:]:
        yield _finding("waiting jobs", *_others(more), severity="warning")


def _others(waiting: list[tuple[float, "Profile"]]) -> tuple[str, str]:
    """Return the cause and the remedy of one finding about several jobs: those that wait, but have no finding
    of their own.
    """
    named = ", ".join(f"{profile.job} ({waits:.0%})" for waits, profile in waiting[:_MOST_ADVISED])
    others = len(waiting) - _MOST_ADVISED
    rest = f" and {format_count(others, 'other')}" if others > 0 else ""
    return f"these jobs wait for data too: {named}{rest}", "`shadeproxy plan --job NAME` says what helps each"


def _stopped(error: NoListener) -> tuple[str, str]:
    """Return the cause and the remedy of a finding about a control listener that does not answer."""
    if not error.reason:
        return error.cause, error.remedy
    remedy = (
        "start it: `shadeproxy serve` with its --config and --set (its log says why it ended); or name the"
        " control listener of another with --url"
    )
    return f"no proxy answers at {error.url} ({error.reason})", remedy


def _checked(settings: Settings, looks: DirectoryLooks) -> Iterator[dict[str, str]]:
    """Yield a finding for each thing that would prevent a proxy from starting. If no origin is configured,
    the origin is not checked.
    """
    unnamed = names_no_store(settings)
    for row in run_checks(settings, looks=looks, with_origin=not unnamed):
        if not row.ok:
            yield _finding(row.name, row.detail, row.change)
    if unnamed:
        yield _finding(
            "origin not tried",
            "origin.endpoint is not set here, which means AWS S3; whether the proxy is meant to read from"
            " there is not known",
            "name the proxy's own --config or --set; `shadeproxy check` tries AWS",
            severity="warning",
        )


def _held(looks: DirectoryLooks) -> Iterator[dict[str, str]]:
    for setting, (path, holder, _) in looks.seen().items():
        if holder:
            yield _finding(
                f"{setting} is held",
                f"{holder} holds {path}, but no proxy answers where this configuration listens",
                "it may start, hang, or be configured otherwise: look at it, name it with --url, or end it",
            )


def _finding(name: str, cause: str, remedy: str, *, severity: str = "wrong") -> dict[str, str]:
    return {"name": name, "severity": severity, "cause": cause, "remedy": remedy}
