"""Links between the processes that can be cut, for one sender or for all, in one direction or in both.

All processes are on one machine, so a link is a TCP relay in front of a listener. A silent link holds the
bytes that it got. When the cut ends, it passes them on, like a network with a long delay.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

_PIECE_BYTES = 1 << 16
_TCP = Path("/proc/net/tcp")
ANYBODY: Final = ""
"""The sender of a link that only one process uses."""
_LOST = (OSError, asyncio.IncompleteReadError)


class Cut(StrEnum):
    """The ways in which a link is cut."""

    SILENT = "nothing arrives"
    REQUESTS = "requests do not arrive"
    ANSWERS = "answers do not arrive"
    REFUSED = "connections are reset"


_STOPS_REQUESTS = frozenset({Cut.SILENT, Cut.REQUESTS})
_STOPS_ANSWERS = frozenset({Cut.SILENT, Cut.ANSWERS})


class Link:
    """A relay to ``target``, a port of loopback. ``port``: the port of the relay. ``senders``: returns the
    process ids of the named senders; None: all connections count as from ``ANYBODY``. Connections of
    processes that are no sender count so too.
    """

    def __init__(
        self, target: int, port: int, senders: Callable[[], Mapping[str, int]] | None = None
    ) -> None:
        self.target = target
        self.port = port
        self._senders = senders
        self._cuts: dict[str, Cut] = {}
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], str] = {}

    async def open(self) -> None:
        """Accept connections."""
        if self._server is None:
            self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)

    def shut(self) -> None:
        """Refuse connections, as the host of a process that has ended does."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self, sender: str, how: Cut) -> None:
        """Cut the link for one sender."""
        self._cuts[sender] = how
        self._tell()
        if how is Cut.REFUSED:
            for task, name in self._open.items():
                if name == sender:
                    task.cancel()

    def heal(self, sender: str) -> None:
        """End the cut of the link for one sender."""
        self._cuts.pop(sender, None)
        self._tell()

    async def aclose(self) -> None:
        """Refuse new connections, and end the existing ones."""
        self.shut()
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _relay(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        sender = self._sender(out.get_extra_info("peername")[1])
        self._open[task] = sender
        far: asyncio.StreamWriter | None = None
        try:
            if self._cuts.get(sender) is Cut.REFUSED:
                return
            await self._until_whole(sender, _STOPS_REQUESTS)
            back, far = await asyncio.open_connection("127.0.0.1", self.target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far, sender, _STOPS_REQUESTS))
                both.create_task(self._pump(back, out, sender, _STOPS_ANSWERS))
        except* (*_LOST, asyncio.CancelledError):
            pass
        finally:
            del self._open[task]
            for writer in (out, far):
                if writer is not None:
                    writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, out: asyncio.StreamWriter, sender: str, stops: frozenset[Cut]
    ) -> None:
        """Pass bytes on until the connection ends. While a cut stops this direction, hold the bytes, and the
        end of the connection.
        """
        while True:
            piece, lost = b"", False
            try:
                piece = await reader.read(_PIECE_BYTES)
            except OSError:
                lost = True
            await self._until_whole(sender, stops)
            if lost:
                raise ConnectionResetError
            if not piece:
                with suppress(OSError):
                    out.write_eof()
                return
            out.write(piece)
            await out.drain()

    async def _until_whole(self, sender: str, stops: frozenset[Cut]) -> None:
        while self._cuts.get(sender) in stops:
            await self._changed.wait()

    def _sender(self, port: int) -> str:
        """Return the name of the process whose connection comes from ``port``."""
        if self._senders is None:
            return ANYBODY
        line = re.search(rf"0100007F:{port:04X} 0100007F:{self.port:04X} 01 .*", _TCP.read_text())
        socket = f"socket:[{line[0].split()[8]}]" if line else ""
        for name, pid in self._senders().items():
            if _holds(pid, socket):
                return name
        return ANYBODY


def _holds(pid: int, socket: str) -> bool:
    """Return whether a process has the socket with this inode."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()) == socket:
                    return True
    return False
