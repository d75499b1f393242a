"""Parses, authenticates and authorises a request, in the same way in every lane and every process.

Law: the order of checks is fixed. The signature is accepted before the operation is determined, and the
client's rights are checked before the engine is called.
"""

from dataclasses import replace

from shadeproxy.api.browsers import KnownHosts, shown_host
from shadeproxy.api.s3.auth.authenticator import Authenticated, Authenticator
from shadeproxy.api.s3.auth.clients import ANONYMOUS
from shadeproxy.api.s3.canonical import canonical, parse_copy_source, settle_presigned
from shadeproxy.api.s3.exchange import Call, EventLog, Exchange, ReadReports, RequestObserver
from shadeproxy.api.s3.operations import Permission, Touches, reads_current, resolve
from shadeproxy.api.s3.request import S3Request, parse_request
from shadeproxy.core.errors import AccessDenied, OriginIsProxy
from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD
from shadeproxy.core.tracing import INSTANCE_FIELD
from shadeproxy.core.types import Headers
from shadeproxy.engine.base import ReadsNow

_LISTS_OF_PREFIX = frozenset({"ListMultipartUploads", "ListObjectVersions", "ListObjects", "ListObjectsV2"})
# A client that may read some keys of a bucket may also know that the bucket exists, and where it lies. All
# other settings of a bucket (policy, ACL and so on) concern all of its keys, so the client needs a right to
# all keys.
_OF_EVERY_CLIENT = frozenset({"GetBucketLocation", "HeadBucket"})


class RequestAuthorizer(ReadReports):
    """Authorises requests. ``base_domains``: lower-case host names of the proxy; a bucket may be addressed as
    a subdomain of each.
    """

    def __init__(
        self,
        reads: ReadsNow,
        authenticator: Authenticator,
        *,
        observer: RequestObserver,
        log: EventLog,
        base_domains: tuple[str, ...] = (),
        verbose: bool = False,
        instance: str = "",
    ) -> None:
        """``instance``: the name by which the proxy marks its own requests to the origin; "" for none."""
        super().__init__(observer, log, verbose=verbose)
        self._instance = instance
        self._reads = reads
        self._authenticator = authenticator
        self._base_domains = base_domains
        # The host names by which an anonymous request may call this listener: ``base_domains``, and the names
        # of loopback addresses, because a listener that accepts anonymous requests has such an address.
        self._hosts = KnownHosts(base_domains)

    def identify(self, method: str, target: str, headers: Headers) -> tuple[Call, Authenticated]:
        """Return the authorised call and its client. Raises RequestError.

        The ``Call`` of every lane is made here, except for plain GETs that the request cache knows.
        """
        request = parse_request(method, target, headers, base_domains=self._base_domains)
        return self._identify(request)

    def reads_cache(self, call: Call) -> bool:
        """Return True if the cache may answer this call. Otherwise the call is forwarded."""
        return reads_current(call.operation, call.request) and self._reads.cacheable(call.ref)

    def may_remember(self, call: Call) -> bool:  # noqa: ARG002 - a worker looks at the call
        """Return True if the request cache may remember this call and its client, and answer repetitions by
        itself.
        """
        return True

    def _identify(self, request: S3Request, exchange: Exchange | None = None) -> tuple[Call, Authenticated]:
        # Check this before the signature. The proxy signs its own requests with its key for the origin, which
        # need not be a client's key. The error would then be about this key, and not about origin.endpoint.
        if self._instance and request.fields.get(INSTANCE_FIELD) == self._instance:
            raise OriginIsProxy("origin.endpoint names this proxy itself: set it to the object store")
        authenticated = self._authenticate(request)
        if authenticated.identity == ANONYMOUS:
            self._check_host(request)
        request = settle_presigned(request)
        operation = resolve(request)
        if exchange is not None:
            exchange.operation = operation.name
        call = Call(canonical(request, operation), operation, authenticated.identity)
        authorise(call)
        return call, authenticated

    def _authenticate(self, request: S3Request) -> Authenticated:
        if request.method == "OPTIONS":
            # Do not verify a signature: browsers send a preflight unsigned, and a preflight for a presigned
            # URL has the signature of another method. Only use the upstream of the client that the URL names.
            upstream = self._authenticator.upstream_named(request)
            return Authenticated(replace(ANONYMOUS, upstream=upstream), UNSIGNED_PAYLOAD)
        return self._authenticator.authenticate(request)

    def _check_host(self, request: S3Request) -> None:
        """Refuse an anonymous request whose Host is no name of this listener. Raises AccessDenied.

        A web page of any site can send such a request, if its own host name leads to this machine. A
        preflight is never signed. If clients are configured, a preflight passes, because one of these clients
        may have signed the request that follows.
        """
        if request.method == "OPTIONS" and self._authenticator.has_clients:
            return
        if not self._hosts.knows(request.host):
            raise AccessDenied(
                f"Without a client's signature this listener is not known as {shown_host(request.host)}",
                hint="call it by localhost or a loopback address, add the name to s3.domains,"
                " or sign as one of [[auth.clients]]",
            )


def authorise(call: Call) -> None:
    """Raise AccessDenied unless the client may make this call.

    A DeleteObjects names its keys in its body. ``forward.py`` checks each of these keys later, when it has
    read the body.
    """
    request, operation, identity = call
    permission, bucket = operation.permission, request.bucket
    if request.key:
        identity.check(permission, bucket, request.key)
        if (source := request.fields.get("x-amz-copy-source")) is not None:
            bucket, keys, _ = parse_copy_source(source)
            for key in keys:
                identity.check(Permission.READ, bucket, key)
    elif operation.name in _LISTS_OF_PREFIX:
        identity.check(permission, bucket, request.query.get("prefix", ""))
    elif operation.name in _OF_EVERY_CLIENT or operation.touches is Touches.LISTED:
        identity.check_bucket(permission, bucket)
    else:
        identity.check(permission, bucket, "")
    if operation.reaches_others:
        identity.check_everything(operation.name)
