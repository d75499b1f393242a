"""The calls of bulk reads (batch and locate calls): which samples a call asks for, and how it is sent on a
``Channel`` of its own.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.batch_buffer import UNKNOWN, BatchBuffer
from shadeproxy_sdk.channel import Channel
from shadeproxy_sdk.connections import Connections
from shadeproxy_sdk.control import Control, refusal
from shadeproxy_sdk.errors import BadAnswer, Broken, ControlError
from shadeproxy_sdk.manifest import Manifest

_IDS_TYPE = "application/vnd.shadeproxy.ids"
# Error codes of a proxy that cannot read these samples by id: it has another dataset or none under that name,
# or is too old to compare digests.
_IDS_REFUSED = frozenset({"conflict", "unknown_name", "invalid_request"})
_MOST_REFUSAL_BYTES = 1 << 20


class Request:
    """A request for the samples ``ids`` of ``manifest``, which are read into ``batch``.

    ``lengths``: the length of each sample according to the manifest; UNKNOWN for whole objects. ``promised``:
    these lengths as an array, i64[k]; None when all samples are whole objects. ``by_id``: True if the samples
    are named by id. ``count``: number of samples of the manifest. ``known_as``: name and digest under which
    the proxy has the manifest; None if the proxy does not have it. ``elsewhere``: positions of the samples
    for which other proxies are being asked. Raises IndexError for an id that the manifest does not have.
    """

    def __init__(self, manifest: Manifest, ids: Sequence[int], batch: BatchBuffer) -> None:
        self.batch = batch
        self.lengths = manifest.lengths(ids)
        self.promised = None if manifest.whole else np.array(self.lengths)
        self.guess = manifest.guess
        self.tag = manifest.tag
        self.count = len(manifest)
        self.by_id = False
        self.known_as = None if manifest.registered is None else (manifest.name, manifest.registered)
        self.elsewhere: frozenset[int] = frozenset()
        self._manifest = manifest
        self._ids = ids

    def missing(self) -> list[int]:
        """Return the positions to ask the called proxy for: those that are missing, and for which no other
        proxy is being asked.
        """
        missing, elsewhere = self.batch.missing(), self.elsewhere
        return [position for position in missing if position not in elsewhere] if elsewhere else missing

    def ids_at(self, positions: Sequence[int]) -> NDArray[np.uint32]:
        """Return the ids of the samples at ``positions``: u32[k]."""
        return np.array(self._ids, "<u4")[np.array(positions, np.intp)]

    def body(self, positions: Sequence[int], order: str | None = None) -> tuple[str, str, bytes]:
        """Return query, content type and body of a call for the samples at ``positions``. ``order``: the
        order of the answer that a batch call asks for.
        """
        fields: dict[str, str | int] = {} if order is None else {"order": order}
        if self.tag is not None:
            fields |= {"job": self.tag.job, "epoch": self.tag.epoch.value, "rank": self.tag.rank}
        if self.by_id and self.known_as is not None:
            dataset, digest = self.known_as
            fields |= {"dataset": dataset, "digest": digest}
            return f"?{urlencode(fields)}", _IDS_TYPE, self.ids_at(positions).tobytes()
        items = b",".join(self._manifest.items_json([self._ids[position] for position in positions]))
        rest = f", {json.dumps(fields)[1:-1]}" if fields else ""
        return "", "application/json", b'{"items": [%b]%b}' % (items, rest.encode())

    def give_way(self, error: ControlError) -> bool:
        """Leave out the part of the request because of which the proxy answered ``error``, so that the call
        can be repeated. Return False if no such part is known.
        """
        if error.code == "unknown_name" and self.tag is not None:
            # The proxy does not know the job, or has forgotten it. Read without naming the job, rather than
            # wait until it is registered.
            self.tag = None
        elif self.by_id and error.code in _IDS_REFUSED:
            self.by_id = False
        else:
            return False
        return True

    def known(self, positions: Sequence[int] = (), lengths: Iterable[int] = ()) -> list[int]:
        """Return the best known length of each sample, by position. ``lengths``: the lengths that the proxy
        found for the samples at ``positions``.
        """
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
class BulkCall:
    """A call for the samples at ``positions`` that was sent on ``channel``, and whose answer was not read
    yet.
    """

    path: str
    content_type: str
    order: str | None
    request: Request
    positions: list[int]
    timeout_s: float
    channel: Channel


@dataclass(frozen=True, slots=True)
class BulkCalls:
    """Makes batch and locate calls to the proxy whose control listener is ``control``."""

    connections: Connections
    control: Control

    def send(
        self,
        path: str,
        content_type: str,
        request: Request,
        positions: list[int],
        timeout_s: float,
        *,
        order: str | None = None,
    ) -> BulkCall:
        """Send a call on an idle or new channel, and return it. Raises Unreachable."""
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
                continue  # The server closed the idle connection earlier.
            except BaseException:
                channel.close()
                raise
            return BulkCall(path, content_type, order, request, positions, timeout_s, channel)

    def _again(self, call: BulkCall) -> BulkCall:
        return self.send(
            call.path, call.content_type, call.request, call.positions, call.timeout_s, order=call.order
        )

    @contextmanager
    def answer(self, call: BulkCall, *, gives_way: bool = True) -> Iterator[Channel]:
        """Yield a channel on which the answer has begun. After the answer is read to its end, the channel can
        be used again. ``gives_way``: whether to ask again without the part of the request that the proxy
        refused (``give_way``).
        """
        while True:
            try:
                channel = self._begin(call)
                break
            except ControlError as error:
                if not (gives_way and call.request.give_way(error)):
                    raise
                call = self._again(call)
        try:
            _check_type(channel, call)
            yield channel
        except BaseException:
            channel.close()
            raise
        self.connections.transport.channels.give(channel)

    def _begin(self, call: BulkCall) -> Channel:
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
                call = self._again(call)  # The server closed the idle connection, as in ``send``.
                continue
            except BaseException:
                channel.close()
                raise
            self.connections.transport.channels.give(channel)
            raise refusal(self.control.url, "POST", call.path, channel.status, told)


def _check_type(channel: Channel, call: BulkCall) -> None:
    if channel.headers.get("content-type") != call.content_type:
        raise BadAnswer(f"{call.path} answered something else than {call.content_type}")
