"""Parts that the commands of the long runs share: printing, signals, errors and the writing of pages."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.demo.processes import termination_as_interrupt
from shadeproxy_bench import machine

Result = TypeVar("Result")


def say(text: object) -> None:
    """Print a line at once, even if the output is a file."""
    print(text, flush=True)


def begin() -> Sequence[str]:
    """Print what the machine is and what may disturb a run on it, and raise the limit of descriptors. Return
    the warnings.
    """
    warnings = machine.warnings()
    say(machine.describe())
    for warning in warnings:
        say(f"warning: {warning}")
    machine.raise_descriptor_limit()
    return warnings


def attempt(run: Callable[[], Result]) -> Result | None:
    """Return the result of ``run``. If it raises ShadeProxyError, print why, and return None. SIGTERM ends
    ``run`` as Ctrl-C does.
    """
    try:
        with termination_as_interrupt():
            return run()
    except ShadeProxyError as error:
        say(f"error: {error}")
        return None


def keep_page(directory: Path, name: str, text: str, plot: Callable[[Path], None] | None = None) -> None:
    """Write the page ``name``.md into ``directory``, and with ``plot`` also the picture ``name``.png."""
    directory.mkdir(parents=True, exist_ok=True)
    if plot is not None:
        plot(directory / f"{name}.png")
    (directory / f"{name}.md").write_text(text)
    say(f"written: {directory / name}.md")


def conclude(failures: Sequence[object], name: str, text: str, directory: Path | None) -> int:
    """Print the failures and the page, and write the page into ``directory``. Return the exit status of the
    command.
    """
    for failure in failures[:20]:
        say(failure)
    say(text)
    if directory is not None:
        keep_page(directory, name, text)
    return int(bool(failures))
