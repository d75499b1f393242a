"""``Handshakes``: accepts the connections of a listener with TLS, and makes their TLS.

Law: a connection is counted by the connection limiter from its accept on, and ends if its handshake takes too
long. Otherwise peers that connect and send nothing would take the last file descriptors.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, cast

from shadeproxy.api.s3.connection_limit import ConnectionLimiter
from shadeproxy.api.s3.part_writer import CLOSE_S

HANDSHAKE_S = 30.0
"""Most seconds from the accept of a connection to the end of its TLS handshake."""


class Handshakes:
    """Protocol factory of a listener with TLS. ``make`` makes the protocol of a connection when its handshake
    is complete.
    """

    def __init__(
        self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext, limiter: ConnectionLimiter
    ) -> None:
        self.make = make
        self.tls = tls
        self.limiter = limiter
        self.under_way: set[Handshake] = set()
        """The connections whose handshake is under way."""
        self.is_ending = False
        """True if connections are cut off from now on, because the listener closes."""

    def __call__(self) -> "Handshake":
        return Handshake(self)

    def end(self) -> None:
        """Cut off the connections whose handshake is under way, and those that are still to come."""
        self.is_ending = True
        for handshake in list(self.under_way):
            handshake.abort()


class Handshake(asyncio.Protocol):
    """One accepted connection, until its TLS handshake is complete."""

    def __init__(self, others: Handshakes) -> None:
        self._others = others
        self._transport: asyncio.Transport | None = None
        self._leave: Callable[[], None] | None = None
        self._steps: Coroutine[Any, Any, asyncio.Transport | None] | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, or reset the connection if there are too many."""
        # A cast, because uvloop's own transport classes are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._leave = None if self._others.is_ending else self._others.limiter.reserve()
        if self._leave is None:
            self._transport.abort()
            return
        self._others.under_way.add(self)
        self._steps = asyncio.get_running_loop().start_tls(
            self._transport,
            self,
            self._others.tls,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=CLOSE_S,
        )
        self._step()

    def data_received(self, data: bytes) -> None:
        """Keep decrypted bytes that came with the end of the handshake."""
        self._received += data

    def abort(self) -> None:
        """Cut the connection off."""
        if self._transport is not None:
            self._transport.abort()

    def _step(self, _waited: object = None) -> None:
        """Run ``start_tls`` until it waits, or ends. No task does this, because a task begins in a later turn
        of the event loop, and bytes of the client that came before would be lost. On the loop of asyncio, a
        client that ends TLS within its first bytes gets no answer; uvloop keeps the end until it is asked.
        """
        assert self._steps is not None, "the handshake has begun"
        made = None
        try:
            waits_for = self._steps.send(None)
        except StopIteration as ended:
            made = ended.value
        except Exception:  # noqa: BLE001, S110 - whatever failed, the connection gives its place back
            pass
        else:
            waits_for.add_done_callback(self._step)
            return
        # A connection that was lost in the middle of its handshake has no session.
        self._end(None if made is None or made.get_extra_info("ssl_object") is None else made)

    def _end(self, made: asyncio.Transport | None) -> None:
        """Pass the connection on to its protocol, which counts it from now on. ``made``: the transport with
        TLS; None if the handshake has failed.
        """
        self._others.under_way.discard(self)
        if self._leave is not None:
            self._leave()
        self._leave = self._steps = None
        if made is None:
            self.abort()
        else:
            protocol = self._others.make()
            made.set_protocol(protocol)
            protocol.connection_made(made)
            if self._received:
                protocol.data_received(self._received)
        self._transport = None
