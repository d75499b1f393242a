"""Makes changes that register new hints, if there is room for these.

Laws: datasets, and jobs that this proxy knows to be in use, are never forgotten for new hints, so these may
be refused. The proxy that gets a call decides whether there is room; in a cluster, all proxies then make the
change. A change by which hints take no more memory is never refused.
"""

from contextlib import suppress

import structlog

from shadeproxy.api.control.context import ControlContext
from shadeproxy.core.errors import UnknownName
from shadeproxy.hints.changes import Change, DeleteJob, Result

_log = structlog.get_logger("shadeproxy.control")


async def make_in_room(
    context: ControlContext, change: Change[Result], more_bytes: int, what: str, *, keep: str = ""
) -> Result:
    """Make a change, by which hints take ``more_bytes`` more. If there is no room for them, first forget jobs
    that are not in use, but not the job ``keep``. Raises HintMemoryFull, and the errors of the change.
    """
    if more_bytes > 0:
        change.check(context.hints)  # Nothing is forgotten for a change that cannot be made.
    memory = context.hint_memory
    while (name := memory.to_forget(more_bytes, what, keep=keep)) is not None:
        with suppress(UnknownName):  # Another call may have deleted it.
            await context.changes.make(DeleteJob(name))
            _log.warning("job forgotten", job=name, reason=f"{what} needed its memory")
    with memory.hold(more_bytes):
        return await context.changes.make(change)
