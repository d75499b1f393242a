"""Links between the processes of a run. A link can be cut for one sender or for all senders.

All processes are on one machine, so a link is a TCP relay in front of a listener. A cut refuses connections,
or holds bytes back, in one direction or in both. When the cut ends, the link passes the held bytes on, like a
network with a long delay.
"""

import asyncio
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from shadeproxy_bench.reliability.cluster.network import LOOPBACK, Cut, Pids, Streams

_PIECE_BYTES = 1 << 16
_BACKLOG = 100
_TCP = Path("/proc/net/tcp")
ANYBODY: Final = ""
"""The name under which a connection counts if the link does not know the process that opened it."""
_LOST = (OSError, asyncio.IncompleteReadError)
_STOPS_REQUESTS = frozenset({Cut.SILENT, Cut.REQUESTS})
_STOPS_ANSWERS = frozenset({Cut.SILENT, Cut.ANSWERS})


class Link:
    """A relay to ``target``, a port of loopback. ``port``: the port of the relay. ``senders``: a function
    that returns process ids by the names of senders. A connection from a process that is no sender counts as
    from ``ANYBODY``. If ``senders`` is None, every connection counts so.
    """

    def __init__(self, target: int, port: int, senders: Pids | None = None) -> None:
        self.target = target
        self.port = port
        self._senders = senders
        self._cuts: dict[str, Cut] = {}
        self._changed = asyncio.Event()
        self._listener: socket.socket | None = None
        self._open: dict[asyncio.Task[None], str] = {}

    async def open(self) -> None:
        """Accept connections at ``port`` from now on."""
        if self._listener is None:
            self._listener = socket.create_server((LOOPBACK, self.port), backlog=_BACKLOG)
            self._listener.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def shut(self) -> None:
        """Refuse connections at ``port``, as a host does when the listening process has ended."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

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

    def _accept(self, listener: socket.socket) -> None:
        """Accept a connection, and begin to relay it. An ``asyncio.Server`` would lose a connection that
        comes while the server is being closed.
        """
        with suppress(OSError):
            connection, (_host, port) = listener.accept()
            connection.setblocking(False)
            sender = self._sender(port)
            task = asyncio.create_task(self._relay(connection, sender))
            self._open[task] = sender
            task.add_done_callback(lambda ended: self._end(ended, connection))

    def _end(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        del self._open[task]
        # _relay closes the connection too, but not if its task was cancelled before it began.
        connection.close()

    async def _relay(self, connection: socket.socket, sender: str) -> None:
        ends: list[Streams] = []
        try:
            if self._cuts.get(sender) is Cut.REFUSED:
                return
            ends.append(await asyncio.open_connection(sock=connection))
            await self._until_whole(sender, _STOPS_REQUESTS)
            ends.append(await asyncio.open_connection(LOOPBACK, self.target))
            (reader, out), (back, far) = ends
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far, sender, _STOPS_REQUESTS))
                both.create_task(self._pump(back, out, sender, _STOPS_ANSWERS))
        except* (*_LOST, asyncio.CancelledError):
            pass
        finally:
            for _, writer in ends:
                writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, out: asyncio.StreamWriter, sender: str, stops: frozenset[Cut]
    ) -> None:
        """Pass bytes on until the connection ends. While a cut stops this direction, hold the bytes that have
        come, or the end of the connection.
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
        """Return the name of the sender whose connection to this relay comes from ``port``."""
        if self._senders is None:
            return ANYBODY
        line = re.search(rf"0100007F:{port:04X} 0100007F:{self.port:04X} 01 .*", _TCP.read_text())
        socket = f"socket:[{line[0].split()[8]}]" if line else ""
        for name, pid in self._senders().items():
            if _holds(pid, socket):
                return name
        return ANYBODY


def _holds(pid: int, socket: str) -> bool:
    """Return whether a process has ``socket`` open, named as in /proc: "socket:[inode]"."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()) == socket:
                    return True
    return False
