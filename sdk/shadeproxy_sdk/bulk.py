"""Many samples in few calls: from the cache's own files where they can be opened, else in one streamed
answer.

Law: nothing here fails a read. What a better way does not give stays missing, and the client then reads it
by plain GETs, whose rules about statuses, retries and the origin are the only ones. A way that does not work
is left alone for a pause that grows (``Gate``), and then tried again.

Items go by bucket and key, not by id: an id means what the proxy's dataset of that name says now, which
another run may have registered anew; a key is always itself.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shadeproxy_sdk import frames, locate
from shadeproxy_sdk.channel import Channel
from shadeproxy_sdk.connections import Connections
from shadeproxy_sdk.control import Control, probe_timeout_s, read_json, refusal
from shadeproxy_sdk.errors import BadAnswer, Broken, ConfigError, ControlError, Unreachable
from shadeproxy_sdk.gate import Passage
from shadeproxy_sdk.landing import UNKNOWN, Allocate, Landing
from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.ways import Offers

_LOG = logging.getLogger("shadeproxy_sdk")
MOST_ITEMS = 4096
"""In one call: with the longest keys of S3 its body stays below the 8 MiB that the proxy takes."""
_MOST_RECORDS_BYTES = 256 << 20
_MOST_REFUSAL_BYTES = 1 << 20


def parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """``ids`` in pieces that fit one call."""
    return (ids[start : start + MOST_ITEMS] for start in range(0, len(ids), MOST_ITEMS))


class Request:
    """Samples ``ids`` of ``manifest`` on their way into ``landing``.

    ``lengths``: of each by the manifest, UNKNOWN for whole objects. Raises IndexError.
    """

    def __init__(self, manifest: Manifest, ids: Sequence[int], landing: Landing) -> None:
        self.landing = landing
        self.lengths = manifest.lengths(ids)
        self.guess = manifest.guess
        self.tag = manifest.tag
        self._items = manifest.items_json(ids)

    def body(self, positions: Sequence[int], order: str | None = None) -> bytes:
        """The JSON body of a call for ``landing``'s missing ``positions``."""
        fields: dict[str, str | int] = {} if order is None else {"order": order}
        if self.tag is not None:
            fields |= {"job": self.tag.job, "epoch": self.tag.epoch.value, "rank": self.tag.rank}
        items = b",".join([self._items[position] for position in positions])
        rest = f", {json.dumps(fields)[1:-1]}" if fields else ""
        return b'{"items": [%b]%b}' % (items, rest.encode())


@dataclass(frozen=True, slots=True)
class Found:
    """What locate said of the samples at ``positions``."""

    located: locate.Located
    positions: list[int]


@dataclass(frozen=True, slots=True)
class BulkReads:
    """Batch and locate calls of this process; each wait for bytes is bounded by ``timeout_s``."""

    connections: Connections
    control: Control
    timeout_s: float

    def read(self, request: Request, allocate: Allocate) -> None:
        """Land what can be had, of at most MOST_ITEMS samples, in memory of ``allocate``."""
        ways = self.connections.ways
        passage = ways.batch.ask()
        if passage is Passage.SHUT:
            return
        timeout_s = probe_timeout_s(passage, self.timeout_s)
        try:
            offers = self._offers(timeout_s)
            found = self._locate(request, timeout_s) if offers.locate else None
            request.landing.lay(_lengths(request, found), allocate)
            if found is not None:
                self._copy(found, request.landing, Passage.OPEN)
            if offers.batch:
                self._batch(request, timeout_s)
        except (Unreachable, ControlError, ConfigError) as error:
            _LOG.debug("Reading by GET for a while: %s", error)
            ways.offers = None  # What listens there next may be another version, with another socket.
            ways.batch.failed(passage, str(error))
        else:
            ways.batch.succeeded()

    def _offers(self, timeout_s: float) -> Offers:
        """What the proxy can do. Raises ControlError, ConfigError, and Unreachable when it can do neither."""
        offers = self.connections.ways.offers
        if offers is None:
            answer = self.control.call(self.connections, "GET", "/v1/info", timeout_s=timeout_s)
            told = read_json(answer, self.control.url)
            near = told.get("socket")
            offers = Offers(
                told.get("batch") is True,
                told.get("locate") is True,
                near if isinstance(near, str) else None,
            )
            self.connections.ways.offers = offers
        if not (offers.batch or offers.locate):
            raise Unreachable("the proxy knows no batch calls")
        return offers

    # ------------------------------------------------------------------ locate

    def _locate(self, request: Request, timeout_s: float) -> Found | None:
        """Where missing samples lie, if this process can read there. Raises Unreachable."""
        ways = self.connections.ways
        passage = ways.locate.ask()
        positions = request.landing.missing()
        if passage is Passage.SHUT or not positions:
            return None
        try:
            if not ways.proven:
                # One sample shows whether the files can be opened. A located read counts as a hit: a proxy
                # on another host should not count batches of them that nobody can use.
                probe = self._find(request, positions[:1], timeout_s)
                if not probe.located.pieces or not self._copy(probe, request.landing, passage):
                    return None
            positions = request.landing.missing()
            return self._find(request, positions, timeout_s) if positions else None
        except (ControlError, Broken, BadAnswer) as error:
            ways.locate.failed(passage, str(error))
            return None

    def _find(self, request: Request, positions: list[int], timeout_s: float) -> Found:
        with self._answer(
            "/v1/locate", locate.CONTENT_TYPE, request, positions, timeout_s=timeout_s
        ) as answer:
            located = locate.decode(answer.read(_MOST_RECORDS_BYTES), len(positions))
        for index, length in list(located.lengths.items()):
            if request.lengths[positions[index]] not in {length, UNKNOWN}:
                # Not the bytes that were asked for: who is asked next will say what is wrong.
                del located.pieces[index], located.lengths[index]
        return Found(located, positions)

    def _copy(self, found: Found, landing: Landing, passage: Passage) -> bool:
        """Copy what was found; whether anything could be. Where nothing can, locating rests for a while."""
        if not found.located.pieces:
            return False
        ways = self.connections.ways
        ways.proven = locate.copy(found.located, found.positions, landing, ways.segments) > 0
        if ways.proven:
            ways.locate.succeeded()
        else:
            ways.locate.failed(passage, "located files cannot be read from here")
        return ways.proven

    # ------------------------------------------------------------------ batch

    def _batch(self, request: Request, timeout_s: float) -> None:
        """Land the rest; what the proxy refuses stays missing. Raises Unreachable, ControlError."""
        positions = request.landing.missing()
        try:
            self._receive(request, positions, timeout_s)
        except Broken:
            # Cut short, as by a restart: what came whole is kept, and the rest is asked for once more.
            self._receive(request, request.landing.missing(), timeout_s)

    def _receive(self, request: Request, positions: list[int], timeout_s: float) -> None:
        if not positions:
            return
        with self._answer(
            "/v1/batch", frames.CONTENT_TYPE, request, positions, timeout_s=timeout_s, order="ready"
        ) as answer:
            frames.receive(answer, positions, request.lengths, request.landing)

    # ------------------------------------------------------------------ calls

    @contextmanager
    def _answer(
        self,
        path: str,
        content_type: str,
        request: Request,
        positions: list[int],
        *,
        timeout_s: float,
        order: str | None = None,
    ) -> Iterator[Channel]:
        """A channel whose answer has begun; it serves again if its user read the answer to the end."""
        try:
            channel = self._post(path, request.body(positions, order), timeout_s)
        except ControlError as error:
            if error.code != "unknown_name" or request.tag is None:
                raise
            # A proxy that has forgotten the job, or has not met it yet: the reads need not wait for it.
            request.tag = None
            channel = self._post(path, request.body(positions, order), timeout_s)
        try:
            _check_type(channel, path, content_type)
            yield channel
        except BaseException:
            channel.close()
            raise
        self.connections.ways.channels.give(channel)

    def _post(self, path: str, body: bytes, timeout_s: float) -> Channel:
        ways = self.connections.ways
        headers = {**self.control.headers(), "content-type": "application/json"}
        address = self.control.address(ways.offers.socket if ways.offers is not None else None)
        while True:
            channel = ways.channels.take(address, timeout_s)
            try:
                channel.post(path, headers, body, timeout_s)
                if channel.status == 200:
                    return channel
                told = channel.read(_MOST_REFUSAL_BYTES)
            except Broken:
                channel.close()
                if channel.fresh:
                    raise
                continue  # An idle connection, closed by its server meanwhile.
            except BaseException:
                channel.close()
                raise
            ways.channels.give(channel)
            raise refusal(self.control.url, "POST", path, channel.status, told)


def _check_type(channel: Channel, path: str, content_type: str) -> None:
    if channel.headers.get("content-type") != content_type:
        raise BadAnswer(f"{path} answered something else than {content_type}")


def _lengths(request: Request, found: Found | None) -> list[int]:
    """The length of each sample as well as it is known now."""
    guess = request.guess.length
    lengths = [guess if length == UNKNOWN else length for length in request.lengths]
    if found is not None:
        for index, length in found.located.lengths.items():
            lengths[found.positions[index]] = length
    for position, data in enumerate(request.landing.views):
        if data is not None:
            lengths[position] = len(data)
    return lengths
