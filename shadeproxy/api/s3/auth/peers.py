"""Authentication of the other nodes of a cluster, at their own listener.

Laws: only a header of Signature Version 4 by the internal client of this cluster is accepted. It must cover
the field that names the client for which the node asks. A write is accepted only once.
"""

import heapq
from collections.abc import Sequence

from shadeproxy.api.s3.auth import sigv4
from shadeproxy.api.s3.auth.authenticator import Authenticated, Authenticator
from shadeproxy.api.s3.auth.clients import ALL_RIGHTS, ChunkSeed, ClientKey, Identity
from shadeproxy.api.s3.canonical import PRESIGNED
from shadeproxy.api.s3.request import S3Request
from shadeproxy.cluster.peer_requests import PEER_KEY, PeerField, peer_secrets
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import Misdirected, NotOfCluster, SignatureMismatch
from shadeproxy.core.sigv4 import ALGORITHM
from shadeproxy.core.tracing import NONCE_FIELD, PEER_FIELD
from shadeproxy.core.types import SHARED, Upstream

_READS = frozenset({"GET", "HEAD"})
_SIGNED_OF_READ = frozenset({"host", "x-amz-date", PEER_FIELD})
_SIGNED_OF_WRITE = _SIGNED_OF_READ | {NONCE_FIELD}
_MOST_NONCES = 65_536
_NONCE_LENGTH = 32


class NonceMemory:
    """Remembers the nonces of accepted writes for as long as their signatures are valid, and at most ``most``
    nonces. ``since_s``: Unix time of this process's start. A write that was signed before this start is
    refused unless it names this process, because an earlier process may have accepted it already.
    """

    def __init__(self, since_s: float, *, most: int = _MOST_NONCES) -> None:
        self._since_s = float(int(since_s))
        self._least_s = 0.0
        self._most = most
        self._seen: set[str] = set()
        self._by_time: list[tuple[float, str]] = []

    def admits(self, nonce: str, signed_s: float, now_s: float, *, for_this: bool) -> bool:
        """Remember the nonce of a write that was signed at ``signed_s``. Return False if the write must be
        refused, because the nonce was seen, or may have been seen and forgotten. ``for_this``: the signature
        names this process. Then no earlier process can have accepted the write, even if the clock of the
        signing machine is wrong.
        """
        while self._by_time and self._by_time[0][0] < now_s - sigv4.MAX_SKEW_S:
            self._forget_oldest()
        least_s = self._least_s if for_this else max(self._least_s, self._since_s)
        if signed_s < least_s or nonce in self._seen:
            return False
        self._seen.add(nonce)
        # Sort by the time of signing, not of arrival. Otherwise one node whose clock is ahead would keep the
        # nonces of all other nodes in memory.
        heapq.heappush(self._by_time, (signed_s, nonce))
        if len(self._by_time) > self._most:
            self._forget_oldest()
        return True

    def _forget_oldest(self) -> None:
        """Forget the nonce that was signed first. From now on, refuse all that was signed by then: even a
        signature that is too old may become valid again, when this machine's clock is set back.
        """
        signed_s, nonce = heapq.heappop(self._by_time)
        self._seen.discard(nonce)
        self._least_s = max(self._least_s, signed_s + 1.0)


class PeerAuthenticator(Authenticator):
    """Accepts requests of the other nodes of ``cluster``. ``node``: this node's name. ``secrets``: the values
    of ``cluster.secret`` with which a request may be signed. ``boot``: the number of this start of the node,
    as its facts say it.
    """

    def __init__(
        self, node: str, cluster: str, secrets: Sequence[str], *, clock: Clock, boot: str = ""
    ) -> None:
        """Raise ConfigError if ``secrets`` is empty."""
        super().__init__((), anonymous=False, clock=clock)
        self.node = node
        self._boot = boot
        self._cluster = cluster
        self._nonces = NonceMemory(clock.now_s())
        self.accept(secrets)

    def accept(self, secrets: Sequence[str]) -> None:
        """Replace the secrets. A caller that remembers identities must then forget them. Raises ConfigError
        if ``secrets`` is empty; the old secrets then stay.
        """
        self._secrets = peer_secrets(self._cluster, secrets)

    def authenticate(self, request: S3Request) -> Authenticated:
        """Return the identity of the client for which another node asks. That node has checked the client's
        rights, so the identity has all rights here. Raises AuthError, InvalidRequest, Misdirected.
        """
        fields = request.fields
        in_query = request.query.keys() & PRESIGNED
        if in_query or not fields.get("authorization", "").startswith(f"{ALGORITHM} "):
            raise not_of_cluster()
        claim = sigv4.parse_header(request)
        is_write = request.method not in _READS
        needed = _SIGNED_OF_WRITE if is_write else _SIGNED_OF_READ
        if claim.access_key != PEER_KEY or not needed.issubset(claim.signed):
            raise not_of_cluster()
        seed = self._verify(claim, request)
        field = PeerField.parse(fields[PEER_FIELD])
        if field.receiver != self.node:
            raise Misdirected(f"This is the node {self.node}, not {field.receiver}")
        if is_write:
            for_this = bool(self._boot) and field.boot == self._boot
            if field.boot and self._boot and not for_this:
                # An earlier process may have accepted it. Its time does not tell, if the clock was set back.
                raise Misdirected("This write names another start of this node")
            self._admit(fields[NONCE_FIELD], claim.amz_date, for_this=for_this)
        identity = Identity(
            f"node {field.sender}", field.upstream, ALL_RIGHTS, seed=seed, namespace=field.namespace
        )
        return Authenticated(identity, claim.payload_hash)

    def client_of(self, access_key: str, token: str | None) -> ClientKey | None:  # noqa: ARG002 - inherited
        """Raise NotOfCluster, because no client has a key at this listener."""
        raise not_of_cluster()

    def upstream_named(self, request: S3Request) -> Upstream:  # noqa: ARG002 - inherited
        """Return the proxy's own upstream, because a URL at this listener cannot name another one."""
        return SHARED

    def _verify(self, claim: sigv4.Claim, request: S3Request) -> ChunkSeed:
        now_s = self._clock.now_s()
        for secret in self._secrets:
            try:
                return sigv4.verify(claim, request, secret, now_s=now_s)
            except SignatureMismatch:
                continue
        raise not_of_cluster("the signature was made with another cluster.secret")

    def _admit(self, nonce: str, amz_date: str, *, for_this: bool) -> None:
        signed_s, now_s = sigv4.unix_time(amz_date), self._clock.now_s()
        if len(nonce) != _NONCE_LENGTH or not self._nonces.admits(nonce, signed_s, now_s, for_this=for_this):
            raise not_of_cluster("this write was received before, or is so old that it may have been")


def not_of_cluster(reason: str = "") -> NotOfCluster:
    """Return the error for a request that does not come from a node of the cluster."""
    return NotOfCluster(
        "This is the listener of the cluster's proxies for each other"
        + (f": {reason}" if reason else ", and answers no other client"),
        hint="send requests to the S3 listener (s3.listen)",
    )
