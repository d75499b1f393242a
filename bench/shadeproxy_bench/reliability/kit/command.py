"""The frame that the commands of the long runs share: printed lines, signals and errors."""

from collections.abc import Callable
from typing import TypeVar

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.demo.processes import termination_as_interrupt

Result = TypeVar("Result")


def say(text: object) -> None:
    """Print a line at once, although the output may be a file."""
    print(text, flush=True)


def attempt(run: Callable[[], Result]) -> Result | None:
    """Return the result of ``run``; None after printing why it could not run. SIGTERM ends it like Ctrl-C."""
    try:
        with termination_as_interrupt():
            return run()
    except ShadeProxyError as error:
        say(f"error: {error}")
        return None
