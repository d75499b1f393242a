"""The reports of one fill to the coordinator.

Law: the fewer messages, the less the coordinator works, and its processor time limits the misses of all
workers. So the head of an answer waits for the first bytes. A page whose bytes all come at once is reported
by one message, with the client that left meanwhile.
"""

from shadeproxy.core.errors import OriginError
from shadeproxy.core.types import Span
from shadeproxy.engine.read.fill_messages import (
    ClientLeft,
    FillComplete,
    FillFailure,
    FillHead,
    FillProgress,
    Outbox,
)


class FillReports:
    """The reports of the fill with the number ``ident``."""

    __slots__ = ("_head", "_ident", "_left", "_outbox", "reported")

    def __init__(self, outbox: Outbox, ident: int) -> None:
        self.reported = 0
        """Number of bytes whose arrival was reported."""
        self._outbox = outbox
        self._ident = ident
        self._head: FillHead | None = None  # A head that was not sent yet.
        self._left: ClientLeft | None = None  # A client that has left, which was not reported yet.

    def open(self, head: FillHead) -> None:
        """Report a head together with the next report, which must come."""
        self._head = head

    def progress(self, filled: int) -> None:
        """Report that ``filled`` bytes have arrived."""
        if self._head is not None:
            self._send_head(self._head, filled)
        elif filled > self.reported:
            self.reported = filled
            self._outbox.send_with_next(FillProgress(self._ident, filled))

    def leave(self, span: Span, *, served: bool, ends: bool) -> None:
        """Report that the client has left. ``span``, ``served``: see ``ClientLeft``.

        ``ends``: True if all bytes have arrived, so that ``complete`` or ``fail`` follows at once. The report
        then waits for it.
        """
        left = ClientLeft(self._ident, *span, served)
        if ends:
            self._left = left
        else:
            self._outbox.send_with_next(left)

    def complete(self) -> None:
        """Report that all bytes have arrived and are right."""
        done, self._left = FillComplete(self._ident, self._left), None
        if (head := self._head) is None:
            self._outbox.send_with_next(done)
        else:
            head.complete = done
            self._send_head(head, head.length)

    def give_up(self, filled: int) -> None:
        """Report what waits for ``complete``, which is not called. ``filled`` bytes have arrived."""
        if self._left is not None:
            # Report the bytes first: otherwise the coordinator would count a whole answer as given up.
            self.progress(filled)
            self._outbox.send_with_next(self._left)
            self._left = None
        elif self._head is not None:
            self._send_head(self._head, 0)

    def fail(self, error: OriginError | None, *, received: int = 0, final: bool = False) -> None:
        """Report a failure, see ``FillFailure``. ``error``: None if nothing went wrong."""
        name, text = ("", "") if error is None else (type(error).__name__, str(error))
        text = text.encode("utf-8", "backslashreplace").decode()
        self._outbox.send(FillFailure(self._ident, name, text, received, final))

    def _send_head(self, head: FillHead, filled: int) -> None:
        self._head = None
        self.reported = head.filled = filled
        try:
            self._outbox.send_with_next(head)
        except UnicodeEncodeError:
            self._outbox.send_with_next(head.in_octets())
