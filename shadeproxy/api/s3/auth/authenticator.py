"""Finds the client of a request and its rights (``Identity``), in the same way in every lane. If the request
cache knows a request's header block, signed.py verifies the request instead.

Laws: an unsigned request is anonymous if anonymous access is on, and refused if it is off. A signature with a
configured key must verify. If anonymous access is on, a request signed with an unknown key is anonymous too:
ordinary S3 clients always sign, and the sender could get the same answer without a signature.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shadeproxy.api.s3.auth import sigv2, sigv4
from shadeproxy.api.s3.auth.clients import ANONYMOUS, ClientKey, Identity
from shadeproxy.api.s3.canonical import PRESIGNED
from shadeproxy.api.s3.request import S3Request
from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import (
    AccessDenied,
    ConfigError,
    InvalidRequest,
    MalformedAuth,
    NotSupported,
    UnknownAccessKey,
)
from shadeproxy.core.sigv4 import ALGORITHM, UNSIGNED_PAYLOAD
from shadeproxy.core.types import SHARED, Upstream


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The identity of a request, and the hash that the client promises for its body: the value of
    ``x-amz-content-sha256``, or UNSIGNED-PAYLOAD if the request has none.
    """

    identity: Identity
    payload_hash: str


class Authenticator:
    """Verifies requests against the configured clients. ``region``: the only signing region that is accepted;
    None accepts any.
    """

    def __init__(
        self,
        clients: Iterable[ClientKey],
        *,
        anonymous: bool,
        clock: Clock,
        region: str | None = None,
    ) -> None:
        self._clock = clock
        self._region = region
        self.adopt(clients, anonymous=anonymous)

    def adopt(self, clients: Iterable[ClientKey], *, anonymous: bool) -> None:
        """Replace the clients. A caller that remembers identities of old clients must then forget them.

        Raises ConfigError if two clients have the same access key; the old clients then stay.
        """
        by_key: dict[str, ClientKey] = {}
        for client in clients:
            if client.access_key in by_key:
                raise ConfigError(f"auth.clients: the access key {client.access_key} is there twice")
            by_key[client.access_key] = client
        self._clients = by_key
        self.anonymous = anonymous

    @property
    def has_clients(self) -> bool:
        """True if at least one client is configured. Otherwise no request can have a valid signature."""
        return bool(self._clients)

    def authenticate(self, request: S3Request) -> Authenticated:
        """Return the identity of a request and its payload hash. Raises a subclass of AuthError, or
        InvalidRequest.
        """
        header = request.fields.get("authorization")
        in_query = request.query.keys() & PRESIGNED
        if len(in_query) + (header is not None) > 1:
            raise InvalidRequest("Only one auth mechanism allowed: header or presigned URL, not both")
        if header is not None:
            if header.startswith("AWS "):
                return self._version_2(sigv2.parse_header(request), request)
            if not header.startswith(f"{ALGORITHM} "):
                raise NotSupported(
                    "The authorization mechanism is not supported", hint="sign with AWS4-HMAC-SHA256"
                )
            return self._version_4(sigv4.parse_header(request), request)
        if "X-Amz-Signature" in in_query:
            return self._version_4(sigv4.parse_presigned(request), request)
        if "AWSAccessKeyId" in in_query:
            return self._version_2(sigv2.parse_presigned(request), request)
        return self._unsigned(request)

    def _version_4(self, claim: sigv4.Claim, request: S3Request) -> Authenticated:
        client = self.client_of(claim.access_key, claim.token)
        if client is None:
            return Authenticated(ANONYMOUS, claim.payload_hash)
        if self._region is not None and claim.scope.region != self._region:
            raise MalformedAuth(
                f"The region {claim.scope.region!r} is wrong; expecting {self._region!r}",
                hint="set the region of the client",
            )
        seed = sigv4.verify(claim, request, client.secret_key, now_s=self._clock.now_s())
        return Authenticated(replace(client.identity(), seed=seed), claim.payload_hash)

    def _version_2(self, claim: sigv2.Claim, request: S3Request) -> Authenticated:
        client = self.client_of(claim.access_key, claim.token)
        payload_hash = request.fields.get("x-amz-content-sha256", UNSIGNED_PAYLOAD)
        if client is None:
            return Authenticated(ANONYMOUS, payload_hash)
        sigv2.verify(claim, request, client.secret_key, now_s=self._clock.now_s())
        return Authenticated(client.identity(), payload_hash)

    def _unsigned(self, request: S3Request) -> Authenticated:
        if not self.anonymous:
            raise AccessDenied(
                "Anonymous access is off", hint="sign the request, or set auth.anonymous = true"
            )
        return Authenticated(ANONYMOUS, request.fields.get("x-amz-content-sha256", UNSIGNED_PAYLOAD))

    def client_of(self, access_key: str, token: str | None) -> ClientKey | None:
        """Return the client with ``access_key``; None if the request counts as anonymous.

        Raises UnknownAccessKey, AccessDenied.
        """
        client = self._clients.get(access_key)
        if client is None:
            if self.anonymous:
                return None
            raise UnknownAccessKey(
                "The access key Id you provided does not exist in our records",
                hint="add it to [[auth.clients]]",
            )
        expected, given = client.session_token or "", token or ""
        if not hmac.compare_digest(expected.encode(), given.encode()):
            raise AccessDenied("The session token does not belong to this access key")
        return client

    def upstream_named(self, request: S3Request) -> Upstream:
        """Return the upstream of the client whose key is in a presigned URL. The URL's signature is not
        checked.
        """
        query = request.query
        credential = query.get("X-Amz-Credential", "").rsplit("/", 4)[0]
        client = self._clients.get(credential or query.get("AWSAccessKeyId", ""))
        return SHARED if client is None else client.upstream
