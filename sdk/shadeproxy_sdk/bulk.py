"""Reads many samples in few calls. If this process can open the files of the cache, locate calls say where
the samples lie there. Otherwise batch calls stream the samples in one answer.

Laws: a failure in this module never fails a read. A sample that these calls do not bring stays missing, and
the client then reads it by a plain GET. The rules about statuses, retries and the origin apply to that GET
alone. After a kind of call has failed, it pauses for a time that grows with each failure
(``CircuitBreaker``).

A call names samples by id if the proxy has the manifest. It then carries the manifest's digest too, because
another run may have registered another list under the same dataset name. Otherwise the call names samples by
bucket and key, which always mean the same object.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shadeproxy_sdk import copying, frames, locate
from shadeproxy_sdk.batch_buffer import UNKNOWN, Allocate
from shadeproxy_sdk.bulk_calls import BulkCall, BulkCalls, Request
from shadeproxy_sdk.circuit_breaker import BreakerDecision
from shadeproxy_sdk.connections import Connections, Offers
from shadeproxy_sdk.control import Control, probe_timeout_s, read_json
from shadeproxy_sdk.errors import BadAnswer, Broken, ConfigError, ControlError, Silent, Unreachable
from shadeproxy_sdk.owner_reads import OwnerReads

_LOG = logging.getLogger("shadeproxy_sdk")
MOST_ITEMS = 4096
"""Most items in one call. Even if all keys have the greatest length that S3 allows, the body stays below the
8 MiB that the proxy accepts.
"""
STEP = 256
"""Number of items in one locate call. While the proxy answers a call, the items of the previous call are
copied. Measured with 256 samples of 100 KB: if the proxy has located the samples before, a call costs it 0.6
ms, however many items the call has. Two calls of 128 items therefore took 15 % longer than one of 256.
"""
_MOST_RECORDS_BYTES = 256 << 20


def parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ``ids`` into pieces that each fit into one call."""
    return (ids[start : start + MOST_ITEMS] for start in range(0, len(ids), MOST_ITEMS))


@dataclass(frozen=True, slots=True)
class BulkReads:
    """The batch and locate calls of this process. ``timeout_s`` bounds each wait for bytes."""

    connections: Connections
    control: Control
    timeout_s: float

    @property
    def calls(self) -> BulkCalls:
        return BulkCalls(self.connections, self.control)

    def read(self, request: Request, allocate: Allocate) -> str | None:
        """Read up to MOST_ITEMS samples into memory from ``allocate``. Samples that these calls do not bring
        stay missing.

        If a wait for the proxy timed out, return the reason, so that the caller expects its next calls to
        hang too. Otherwise return None.
        """
        transport = self.connections.transport
        decision = transport.batch.ask()
        if decision is BreakerDecision.REFUSE:
            return None
        timeout_s = probe_timeout_s(decision, self.timeout_s)
        try:
            offers = self._offers(timeout_s)
            known_as = request.known_as
            named = BreakerDecision.REFUSE if known_as is None else transport.by_id.ask(known_as)
            request.by_id = named is not BreakerDecision.REFUSE
            others = OwnerReads(self.connections, self.control, self.timeout_s)
            with others.reading(request) as receive_others:
                if offers.locate:
                    self._locate(request, allocate, timeout_s)
                if not request.batch.laid:
                    request.batch.lay(request.known(), allocate)
                if offers.batch:
                    self._batch(request, timeout_s, receive_others)
            if offers.batch:
                # Ask the called proxy also for the samples that other proxies were asked for and did not
                # bring.
                self._batch(request, timeout_s)
            if named is not BreakerDecision.REFUSE and not request.by_id:
                transport.by_id.failed(known_as, named, "the proxy does not know these samples by id")
            elif request.by_id:
                transport.by_id.succeeded(known_as)
        except (Unreachable, ControlError, ConfigError) as error:
            _LOG.debug("Reading by GET for a while: %s", error)
            # The proxy may come back as another version, or with another socket. So forget its offers, and
            # ask for them at the next read.
            transport.offers = None
            transport.batch.failed(decision, str(error))
            return str(error) if isinstance(error, Silent) else None
        transport.batch.succeeded()
        return None

    def _offers(self, timeout_s: float) -> Offers:
        """Return which of these calls the proxy offers. Raises Unreachable if the proxy does not answer or
        offers neither batch nor locate; ControlError, and ConfigError.
        """
        offers = self.connections.transport.offers
        if offers is None:
            answer = self.control.call(self.connections, "GET", "/v1/info", timeout_s=timeout_s)
            told = read_json(answer, self.control.url)
            near = told.get("socket")
            offers = Offers(
                told.get("batch") is True,
                told.get("locate") is True and locate.READS_FILES,
                near if isinstance(near, str) else None,
                owners=told.get("owners") is True,
            )
            self.connections.transport.offers = offers
        if not (offers.batch or offers.locate):
            raise Unreachable("the proxy knows no batch calls")
        return offers

    # ------------------------------------------------------------------ locate

    def _locate(self, request: Request, allocate: Allocate, timeout_s: float) -> None:
        """Read the samples that lie in files of the cache which this process can open. Raises Unreachable."""
        transport = self.connections.transport
        decision = transport.locate.ask()
        batch = request.batch
        if decision is BreakerDecision.REFUSE or not request.missing():
            return
        try:
            # First try one sample, to see whether this process can open the files: a client on another host
            # cannot. The proxy counts each located sample as a hit, so it must not locate a whole batch in
            # vain.
            if not transport.proven:
                self._copy_all(request, None, [request.missing()[:1]], decision, timeout_s)
            positions = request.missing()
            if not (transport.proven and positions):
                return
            lengths = request.known()
            known = UNKNOWN not in lengths
            if known:
                batch.lay(lengths, allocate)
            steps = _steps(positions, known=known)
            self._copy_all(request, None if known else allocate, steps, BreakerDecision.ALLOW, timeout_s)
        except (ControlError, Broken, BadAnswer) as error:
            transport.locate.failed(decision, str(error))

    def _copy_all(
        self,
        request: Request,
        allocate: Allocate | None,
        steps: list[list[int]],
        decision: BreakerDecision,
        timeout_s: float,
    ) -> None:
        """Locate and copy in steps: while this process copies one step, the proxy locates the next.

        ``allocate``: allocates a buffer, in which the samples get slots once their lengths are known; None if
        no slots are to be given here. If samples were located but none could be copied, locate calls pause
        for a while.
        """
        transport, batch = self.connections.transport, request.batch
        found = arrived = 0
        call: BulkCall | None = None
        try:
            for number, positions in enumerate(steps):
                call = call or self.calls.send(
                    "/v1/locate", locate.CONTENT_TYPE, request, positions, timeout_s
                )
                with self.calls.answer(call) as answer:
                    call = None
                    body = answer.read(_MOST_RECORDS_BYTES)
                if number + 1 < len(steps):
                    call = self.calls.send(
                        "/v1/locate", locate.CONTENT_TYPE, request, steps[number + 1], timeout_s
                    )
                located = locate.decode(body, len(positions))
                promised = request.promised
                if promised is not None:
                    told = promised[positions]
                    located = located.without((told != UNKNOWN) & (told != located.lengths))
                if allocate is not None:
                    batch.lay(request.known(positions, located.lengths), allocate)
                found += len(located.rows)
                arrived += copying.copy(located, positions, batch, self.connections)
        finally:
            if call is not None:
                call.channel.close()
        if found:
            transport.proven = arrived > 0
            if transport.proven:
                transport.locate.succeeded()
            else:
                transport.locate.failed(decision, "located files cannot be read from here")

    # ------------------------------------------------------------------ batch

    def _batch(
        self, request: Request, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Read the missing samples by a batch call, except those that the proxy refuses. ``meanwhile`` is
        called while the proxy prepares its answer. Raises Unreachable, ControlError.
        """
        positions = request.missing()
        try:
            self._receive(request, positions, timeout_s, meanwhile)
        except Broken:
            # The answer was cut short, for example by a restart of the proxy. Keep the samples that came
            # complete, and ask once more for the rest.
            self._receive(request, request.missing(), timeout_s)

    def _receive(
        self,
        request: Request,
        positions: list[int],
        timeout_s: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        if not positions:
            return
        call = self.calls.send("/v1/batch", frames.CONTENT_TYPE, request, positions, timeout_s, order="ready")
        try:
            meanwhile()
        except BaseException:
            call.channel.close()
            raise
        with self.calls.answer(call) as answer:
            frames.receive(answer, positions, request.lengths, request.batch)


def _steps(positions: list[int], *, known: bool) -> list[list[int]]:
    """Split ``positions`` into steps for locate calls. If a length is unknown, make a single step: the whole
    batch must be located before its samples get slots.
    """
    size = STEP if known else MOST_ITEMS
    return [positions[start : start + size] for start in range(0, len(positions), size)]
