"""Work of long operations that a test ends."""

import asyncio
from dataclasses import dataclass, field

from shadeproxy.core.work_progress import WorkProgress


@dataclass
class Work:
    """The work of a long operation. It ends when the test sets ``go_on``, with ``error`` if there is one."""

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
