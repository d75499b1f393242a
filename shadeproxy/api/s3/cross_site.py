"""Refuses unsigned writes that a web page makes a browser send, unless the bucket allows the page's site.

Law: the bucket's own CORS rules decide. The proxy asks the origin about them with a preflight, as a browser
would. Browsers themselves send a form or a "simple" request without a preflight: CORS alone would only hide
the answer to such a request from the page, and the write would still happen.
"""

from urllib.parse import quote

from shadeproxy.api.browsers import site_of
from shadeproxy.api.s3.auth.clients import ANONYMOUS
from shadeproxy.api.s3.exchange import Call
from shadeproxy.api.s3.forward import ForwardPath
from shadeproxy.core.errors import AccessDenied, NotSupported
from shadeproxy.core.types import Headers
from shadeproxy.origin.base import ForwardRequest

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HINT = "sign the request as one of [[auth.clients]], or let this site write in the CORS rules of the bucket"


async def refuse_cross_site_write(engine: ForwardPath, call: Call, *, request_id: str) -> None:
    """Raise AccessDenied for an anonymous write that a web page sent, if the bucket does not allow the page's
    site to write. Also raises OriginError.
    """
    request = call.request
    if request.method in _SAFE or call.identity != ANONYMOUS:
        return
    site = site_of(request.fields, request.host)
    if site is None or (site and await _is_allowed(engine, call, site, request_id)):
        return
    raise AccessDenied(
        f"A web page of {site or 'another site'} may not {request.method} here without a client's signature",
        hint=_HINT,
    )


async def _is_allowed(engine: ForwardPath, call: Call, site: str, request_id: str) -> bool:
    request = call.request
    question = ForwardRequest(
        method="OPTIONS",
        # Ask about the bucket, because CORS rules are the same for all of its keys.
        ref=call.ref.beside(""),
        raw_path=f"/{quote(request.bucket, safe='-_.~:')}",
        headers=(("Origin", site), ("Access-Control-Request-Method", request.method)),
        upstream=call.identity.upstream,
        request_id=request_id,
    )
    try:
        async with engine.forward(question) as answer:
            return answer.status in {200, 204} and _grants(answer.headers, site, request.method)
    except NotSupported:  # The origin has no CORS rules.
        return False


def _grants(headers: Headers, site: str, method: str) -> bool:
    fields = {name.lower(): value for name, value in headers}
    methods = {name.strip() for name in fields.get("access-control-allow-methods", "").split(",")}
    return fields.get("access-control-allow-origin") in {site, "*"} and bool(methods & {method, "*"})
