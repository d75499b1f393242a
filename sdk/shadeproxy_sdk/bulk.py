"""Reads many samples in few calls: from the cache's own files if this process can open them, else in one
streamed answer.

Laws: a failure in this module never fails a read. A sample that these calls do not bring stays missing, and
the client then reads it by a plain GET. Only the GET has rules about statuses, retries and the origin. After
a failure, a kind of call is not used for a pause, which grows (``CircuitBreaker``); then it is tried again.

Samples are named by id if the proxy has the manifest. The call also carries the manifest's digest, because
another run may have registered another list under the same dataset name. Otherwise samples are named by
bucket and key, whose meaning never changes.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

import numpy as np

from shadeproxy_sdk import copying, frames, locate
from shadeproxy_sdk.batch_buffer import UNKNOWN, Allocate, BatchBuffer
from shadeproxy_sdk.channel import Channel
from shadeproxy_sdk.circuit_breaker import BreakerDecision
from shadeproxy_sdk.connections import Connections, Offers
from shadeproxy_sdk.control import Control, probe_timeout_s, read_json, refusal
from shadeproxy_sdk.errors import BadAnswer, Broken, ConfigError, ControlError, Silent, Unreachable
from shadeproxy_sdk.manifest import Manifest

_LOG = logging.getLogger("shadeproxy_sdk")
_IDS_TYPE = "application/vnd.shadeproxy.ids"
# Error codes of a proxy that has another dataset under that name, or none, or is too old to compare digests.
_IDS_REFUSED = frozenset({"conflict", "unknown_name", "invalid_request"})
MOST_ITEMS = 4096
"""Most items in one call. With the longest keys of S3, the body stays below the 8 MiB that the proxy
accepts.
"""
STEP = 256
"""Number of items in one locate call. While the proxy answers, the items of the previous call are copied.
Measured with 256 samples of 100 KB: a call costs the proxy 0.6 ms, and an item that it has located before
next to nothing. Two calls of 128 items therefore took 15 % longer than one of 256.
"""
_MOST_RECORDS_BYTES = 256 << 20
_MOST_REFUSAL_BYTES = 1 << 20


def parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ``ids`` into pieces that fit one call."""
    return (ids[start : start + MOST_ITEMS] for start in range(0, len(ids), MOST_ITEMS))


class Request:
    """A request for the samples ``ids`` of ``manifest``, which are read into ``batch``.

    ``lengths``: the length of each sample by the manifest; UNKNOWN for whole objects. ``promised``: the same
    as an array, i64[k]; None when all samples are whole objects. ``by_id``: True if the samples are named by
    id. ``known_as``: name and digest under which the proxy has the manifest; None if the proxy does not have
    it. Raises IndexError for an id that the manifest does not have.
    """

    def __init__(self, manifest: Manifest, ids: Sequence[int], batch: BatchBuffer) -> None:
        self.batch = batch
        self.lengths = manifest.lengths(ids)
        self.promised = None if manifest.whole else np.array(self.lengths)
        self.guess = manifest.guess
        self.tag = manifest.tag
        self.by_id = False
        self.known_as = None if manifest.registered is None else (manifest.name, manifest.registered)
        self._manifest = manifest
        self._ids = ids

    def body(self, positions: Sequence[int], order: str | None = None) -> tuple[str, str, bytes]:
        """Return query, content type and body of a call for the missing ``positions`` of ``batch``."""
        fields: dict[str, str | int] = {} if order is None else {"order": order}
        if self.tag is not None:
            fields |= {"job": self.tag.job, "epoch": self.tag.epoch.value, "rank": self.tag.rank}
        if self.by_id and self.known_as is not None:
            dataset, digest = self.known_as
            fields |= {"dataset": dataset, "digest": digest}
            ids = np.array(self._ids, "<u4")[np.array(positions)]
            return f"?{urlencode(fields)}", _IDS_TYPE, ids.tobytes()
        items = b",".join(self._manifest.items_json([self._ids[position] for position in positions]))
        rest = f", {json.dumps(fields)[1:-1]}" if fields else ""
        return "", "application/json", b'{"items": [%b]%b}' % (items, rest.encode())

    def give_way(self, error: ControlError) -> bool:
        """Drop the part of the request that caused the refusal ``error``. Return False if there is no such
        part.
        """
        if error.code == "unknown_name" and self.tag is not None:
            # The proxy does not know the job, or has forgotten it. Read without naming the job, instead of
            # waiting until it is registered.
            self.tag = None
        elif self.by_id and error.code in _IDS_REFUSED:
            self.by_id = False
        else:
            return False
        return True

    def known(self, positions: Sequence[int] = (), lengths: Iterable[int] = ()) -> list[int]:
        """Return the best known length of each sample. ``lengths``: the lengths found for ``positions``."""
        guess = self.guess.length
        known = [guess if length == UNKNOWN else length for length in self.lengths]
        for position, length in zip(positions, lengths, strict=True):
            if length != UNKNOWN:
                known[position] = int(length)
        for position, data in enumerate(self.batch.views):
            if data is not None:
                known[position] = len(data)
        return known


@dataclass(frozen=True, slots=True)
class _Call:
    """A call for the samples at ``positions``, sent on ``channel``. Its answer has not been read."""

    path: str
    content_type: str
    order: str | None
    request: Request
    positions: list[int]
    timeout_s: float
    channel: Channel


@dataclass(frozen=True, slots=True)
class BulkReads:
    """The batch and locate calls of this process. ``timeout_s`` bounds each wait for bytes."""

    connections: Connections
    control: Control
    timeout_s: float

    def read(self, request: Request, allocate: Allocate) -> str | None:
        """Read up to MOST_ITEMS samples into memory from ``allocate``. Samples that cannot be read stay
        missing.

        Return a reason if a wait for the proxy timed out, because later calls may hang too; otherwise None.
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
            if offers.locate:
                self._locate(request, allocate, timeout_s)
            if not request.batch.laid:
                request.batch.lay(request.known(), allocate)
            if offers.batch:
                self._batch(request, timeout_s)
            if named is not BreakerDecision.REFUSE and not request.by_id:
                transport.by_id.failed(known_as, named, "the proxy does not know these samples by id")
            elif request.by_id:
                transport.by_id.succeeded(known_as)
        except (Unreachable, ControlError, ConfigError) as error:
            _LOG.debug("Reading by GET for a while: %s", error)
            transport.offers = None  # The proxy may come back as another version, or with another socket.
            transport.batch.failed(decision, str(error))
            return str(error) if isinstance(error, Silent) else None
        transport.batch.succeeded()
        return None

    def _offers(self, timeout_s: float) -> Offers:
        """Return the calls that the proxy offers. Raises Unreachable if the proxy does not answer or offers
        none of them, ControlError, and ConfigError.
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
            )
            self.connections.transport.offers = offers
        if not (offers.batch or offers.locate):
            raise Unreachable("the proxy knows no batch calls")
        return offers

    # ------------------------------------------------------------------ locate

    def _locate(self, request: Request, allocate: Allocate, timeout_s: float) -> None:
        """Read the samples that lie in files which this process can open. Raises Unreachable."""
        transport = self.connections.transport
        decision = transport.locate.ask()
        batch = request.batch
        if decision is BreakerDecision.REFUSE or not batch.missing():
            return
        try:
            # First try one sample, to see if this process can open the files. The proxy counts each located
            # read as a hit, and should not count whole batches for a client on another host that cannot open
            # its files.
            if not transport.proven:
                self._copy_all(request, None, [batch.missing()[:1]], decision, timeout_s)
            positions = batch.missing()
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

        ``allocate``: allocates the buffer, in which the samples get slots once their lengths are known; None
        leaves their slots as they are. If files were found but nothing could be copied, locating is not tried
        for a while.
        """
        transport, batch = self.connections.transport, request.batch
        found = arrived = 0
        call: _Call | None = None
        try:
            for number, positions in enumerate(steps):
                call = call or self._send("/v1/locate", locate.CONTENT_TYPE, request, positions, timeout_s)
                with self._answer(call) as answer:
                    call = None
                    body = answer.read(_MOST_RECORDS_BYTES)
                if number + 1 < len(steps):
                    call = self._send(
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

    def _batch(self, request: Request, timeout_s: float) -> None:
        """Read the missing samples, except those that the proxy refuses. Raises Unreachable, ControlError."""
        positions = request.batch.missing()
        try:
            self._receive(request, positions, timeout_s)
        except Broken:
            # The answer was cut short, for example by a restart of the proxy. Keep the complete samples, and
            # ask once more for the rest.
            self._receive(request, request.batch.missing(), timeout_s)

    def _receive(self, request: Request, positions: list[int], timeout_s: float) -> None:
        if not positions:
            return
        call = self._send("/v1/batch", frames.CONTENT_TYPE, request, positions, timeout_s, order="ready")
        with self._answer(call) as answer:
            frames.receive(answer, positions, request.lengths, request.batch)

    # ------------------------------------------------------------------ calls

    def _send(
        self,
        path: str,
        content_type: str,
        request: Request,
        positions: list[int],
        timeout_s: float,
        *,
        order: str | None = None,
    ) -> _Call:
        """Send a call, and return it. Raises Unreachable."""
        transport = self.connections.transport
        address = self.control.address(transport.offers.socket if transport.offers is not None else None)
        query, kind, body = request.body(positions, order)
        headers = {**self.control.headers(), "content-type": kind}
        while True:
            channel = transport.channels.take(address, timeout_s)
            try:
                channel.send(path + query, headers, body, timeout_s)
            except Broken:
                channel.close()
                if channel.fresh:
                    raise
                continue  # The server closed the idle connection before the call.
            except BaseException:
                channel.close()
                raise
            return _Call(path, content_type, order, request, positions, timeout_s, channel)

    def _again(self, call: _Call) -> _Call:
        return self._send(
            call.path, call.content_type, call.request, call.positions, call.timeout_s, order=call.order
        )

    @contextmanager
    def _answer(self, call: _Call) -> Iterator[Channel]:
        """Yield a channel whose answer has begun. If the caller reads the answer to its end, the channel is
        used again.
        """
        while True:
            try:
                channel = self._begin(call)
                break
            except ControlError as error:
                if not call.request.give_way(error):
                    raise
                call = self._again(call)
        try:
            _check_type(channel, call)
            yield channel
        except BaseException:
            channel.close()
            raise
        self.connections.transport.channels.give(channel)

    def _begin(self, call: _Call) -> Channel:
        while True:
            channel = call.channel
            try:
                channel.begin()
                if channel.status == 200:
                    return channel
                told = channel.read(_MOST_REFUSAL_BYTES)
            except Broken:
                channel.close()
                if channel.fresh:
                    raise
                call = self._again(call)  # The server closed the idle connection, as in ``_send``.
                continue
            except BaseException:
                channel.close()
                raise
            self.connections.transport.channels.give(channel)
            raise refusal(self.control.url, "POST", call.path, channel.status, told)


def _check_type(channel: Channel, call: _Call) -> None:
    if channel.headers.get("content-type") != call.content_type:
        raise BadAnswer(f"{call.path} answered something else than {call.content_type}")


def _steps(positions: list[int], *, known: bool) -> list[list[int]]:
    """Split ``positions`` into steps for locate calls. If a length is unknown there is only one step,
    because the whole batch must be located before it gets its slots.
    """
    size = STEP if known else MOST_ITEMS
    return [positions[start : start + size] for start in range(0, len(positions), size)]
