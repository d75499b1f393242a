"""The work of a long operation that lasts until a test ends it."""

import asyncio
from dataclasses import dataclass, field

from shadeproxy.core.work_progress import WorkProgress


@dataclass
class Work:
    """The work of a long operation. It ends when the test sets ``go_on``, and raises ``error`` if that is
    set.
    """

    uri: str
    dry_run: bool
    kind: str = "warm"
    progress: WorkProgress = field(default_factory=WorkProgress)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    async def run(self) -> None:
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
