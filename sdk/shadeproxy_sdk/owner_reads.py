"""Batch calls to the other proxies of a cluster, for samples that those proxies cache. Here "the called
proxy" is the one at the client's URL.

Laws: a failure here never fails a read. If another proxy does not bring its samples, the called proxy is
asked for them; it gets them from that proxy or the origin. Before a proxy is asked, it must show that it is
the node of the cluster that was meant, because an address may lead to another server. The token is sent over
no connection that is less secure than the caller's own.
"""

import ipaddress
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from shadeproxy_sdk import frames
from shadeproxy_sdk.bulk_calls import BulkCall, BulkCalls, Request
from shadeproxy_sdk.circuit_breaker import BreakerDecision
from shadeproxy_sdk.connections import Connections, Offers
from shadeproxy_sdk.control import Control, probe_timeout_s, read_json
from shadeproxy_sdk.errors import BadAnswer, ConfigError, ControlError, Unreachable
from shadeproxy_sdk.owners import CONTENT_TYPE, Owner, OwnerColumn, decode

_LOG = logging.getLogger("shadeproxy_sdk")
_MOST_PATIENCE_S = 10.0
"""Most seconds of each wait for bytes from another proxy. The called proxy itself would wait for that proxy
only a second, and then ask the origin.
"""


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of a batch that was requested from ``owner``, and whose answer was not read yet."""

    owner: Owner
    calls: BulkCalls
    call: BulkCall
    decision: BreakerDecision


@dataclass(frozen=True, slots=True)
class OwnerReads:
    """Reads samples from the proxies that cache them. ``connections``: those to the called proxy.
    ``control``: the control listener of the called proxy. ``timeout_s``: most seconds of each wait for bytes.
    """

    connections: Connections
    control: Control
    timeout_s: float

    @contextmanager
    def reading(self, request: Request) -> Iterator[Callable[[], None]]:
        """Ask other proxies for the samples that they cache. Meanwhile the block reads the samples that the
        called proxy caches, and gives all samples their slots.

        Yield a function that receives the other proxies' samples. It is called at the end of the block,
        unless the block has called it.
        """
        shares: list[_Share] = []
        try:
            self._begin(request, shares)
            try:
                yield lambda: self._receive(request, shares)
            except Exception:
                if request.batch.laid:
                    self._receive(request, shares)
                raise
            self._receive(request, shares)
        finally:
            request.elsewhere = frozenset()
            for share in shares:
                share.call.channel.close()

    # ------------------------------------------------------------------ sending

    def _begin(self, request: Request, shares: list[_Share]) -> None:
        column, missing = self._column(request), request.missing()
        if column is None or not missing:
            return
        for owner, positions in column.shares(request.ids_at(missing), missing):
            share = self._ask(owner, request, positions)
            if share is not None:
                shares.append(share)
        request.elsewhere = frozenset(position for share in shares for position in share.call.positions)

    def _ask(self, owner: Owner, request: Request, positions: list[int]) -> _Share | None:
        if not self._may_call(owner):
            self._failed(request, owner, f"its address {owner.control} is not for callers from here")
            return None
        url = f"http://{owner.control}"
        connections = self.connections.other(owner.node, url)
        transport = connections.transport
        decision = transport.batch.ask()
        if decision is BreakerDecision.REFUSE:
            self.connections.owners.passed_over()
            return None
        timeout_s = probe_timeout_s(decision, min(self.timeout_s, _MOST_PATIENCE_S))
        try:
            calls = BulkCalls(connections, self.control.at(url))
            if transport.offers is None:
                transport.offers = self._offers(calls, owner, timeout_s)
            call = calls.send("/v1/batch", frames.CONTENT_TYPE, request, positions, timeout_s, order="ready")
        except (Unreachable, ControlError, ConfigError) as error:
            transport.batch.failed(decision, str(error))
            self._failed(request, owner, str(error))
            return None
        return _Share(owner, calls, call, decision)

    def _offers(self, calls: BulkCalls, owner: Owner, timeout_s: float) -> Offers:
        """Return the calls that another proxy offers to this host. Raises BadAnswer if the proxy that answers
        is not ``owner``.
        """
        control, connections = calls.control, calls.connections
        answer = control.call(connections, "GET", "/v1/cluster", timeout_s=timeout_s)
        if read_json(answer, control.url).get("node") != owner.node:
            raise BadAnswer(f"{control.url} is not the node {owner.node} of the cluster")
        near = None
        if is_loopback(control.host):
            near = read_json(
                control.call(connections, "GET", "/v1/info", timeout_s=timeout_s), control.url
            ).get("socket")
        return Offers(batch=True, locate=False, socket=near if isinstance(near, str) else None)

    def _may_call(self, owner: Owner) -> bool:
        """Return whether the address of ``owner`` leads to that proxy from this host. A loopback address does
        so only if the called proxy has one too.
        """
        return not is_loopback(owner.control.rpartition(":")[0]) or is_loopback(self.control.host)

    # ------------------------------------------------------------------ receiving

    def _receive(self, request: Request, shares: list[_Share]) -> None:
        while shares:
            # Take the share off the list before its answer is read, which also closes or gives back the
            # channel. After an unexpected failure, such as one of memory, the share must not be received a
            # second time.
            share = shares.pop(0)
            breaker = share.calls.connections.transport.batch
            try:
                with share.calls.answer(share.call, gives_way=False) as answer:
                    frames.receive(answer, share.call.positions, request.lengths, request.batch)
            except (Unreachable, ControlError) as error:
                # Forget the offers: another server may have this address now.
                share.calls.connections.transport.offers = None
                breaker.failed(share.decision, str(error))
                self._failed(request, share.owner, str(error))
            else:
                breaker.succeeded()

    def _failed(self, request: Request, owner: Owner, reason: str) -> None:
        assert request.known_as is not None, "samples without ids have no owners"
        first = self.connections.owners.failed(request.known_as, owner.node)
        level = logging.INFO if first else logging.DEBUG
        _LOG.log(
            level, "Samples that node %s caches are read through %s: %s", owner.node, self.control.url, reason
        )

    # ------------------------------------------------------------------ columns

    def _column(self, request: Request) -> OwnerColumn | None:
        """Return the owners of the samples of the request's dataset; None if all samples are to be read from
        the called proxy.
        """
        offers, dataset = self.connections.transport.offers, request.known_as
        if offers is None or not (offers.owners and offers.batch) or dataset is None or not request.by_id:
            return None
        if self.control.secure:
            # Other proxies are called by HTTP, which would be less secure than the HTTPS of the called proxy.
            return None
        owners = self.connections.owners
        if owners.is_due(dataset):
            try:
                owners.put(dataset, self._fetch(dataset, request.count, owners.find(dataset)))
            except (Unreachable, ControlError) as error:
                _LOG.debug("The owners of %s are not known: %s", dataset[0], error)
        return owners.find(dataset)

    def _fetch(self, dataset: tuple[str, str], count: int, known: OwnerColumn | None) -> OwnerColumn:
        name, digest = dataset
        answer = self.control.call(
            self.connections,
            "GET",
            f"/v1/datasets/{quote(name)}/owners?digest={quote(digest)}",
            extra={} if known is None else {"if-none-match": f'"{known.tag}"'},
            timeout_s=min(self.timeout_s, _MOST_PATIENCE_S),
        )
        if answer.status == 304 and known is not None:
            return known
        if answer.headers.get("content-type") != CONTENT_TYPE:
            raise BadAnswer(f"the owners came as something else than {CONTENT_TYPE}")
        return decode(answer.body, count, answer.headers.get("etag", "").strip('"'))


def is_loopback(host: str) -> bool:
    """Return whether ``host`` names the caller's own host."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
