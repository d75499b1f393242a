"""Makes changes that register new hints, if there is room for these.

Laws: hints that this proxy knows to be in use are never forgotten for new ones, so these may be refused. The
proxy that gets a call decides whether there is room; in a cluster, all proxies then make the change. A change
by which hints take no more memory is never refused.
"""

from contextlib import suppress

import structlog

from shadeproxy.api.control.context import ControlContext
from shadeproxy.core.errors import Conflict, TooManyHints, UnknownName
from shadeproxy.hints.changes import Change, DeleteJob, Result

_log = structlog.get_logger("shadeproxy.control")


async def make_in_room(context: ControlContext, change: Change[Result], more_bytes: int, what: str) -> Result:
    """Make a change, by which hints take ``more_bytes`` more. If there is no room for them, or no place for
    one more dataset or job, first forget hints that are out of use. Raises HintMemoryFull, and the errors of
    the change.
    """
    if more_bytes > 0:
        with suppress(TooManyHints):
            change.check(context.hints)  # Nothing is forgotten for a change that cannot be made.
    memory, clock = context.hint_memory, context.clock
    while (gone := memory.to_forget(change, more_bytes, what, clock.now_s())) is not None:
        with suppress(UnknownName, Conflict):  # Another call may have deleted it, or use it by now.
            await context.changes.make(gone)
            kind = "job" if isinstance(gone, DeleteJob) else "dataset"
            _log.warning(f"{kind} forgotten", reason=f"{what} needed its place", **{kind: gone.name})
    with memory.hold(more_bytes):
        return await context.changes.make(change)
