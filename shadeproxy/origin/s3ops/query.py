"""Decodes and checks query parameters and header fields of a ForwardRequest."""

from urllib.parse import parse_qsl, quote

from shadeproxy.core.errors import InvalidRequest, OriginAnswer
from shadeproxy.core.types import Headers
from shadeproxy.origin.base import ForwardRequest


def parse_query(raw_query: str) -> dict[str, str]:
    """Return the decoded parameters of a query. If a name is repeated, its first value counts, as in S3.

    Raises InvalidRequest for bytes that are not UTF-8.
    """
    parameters: dict[str, str] = {}
    try:
        for name, value in parse_qsl(raw_query, keep_blank_values=True, errors="strict"):
            parameters.setdefault(name, value)
    except ValueError:
        raise InvalidRequest(
            "The query string is not UTF-8.", hint="Percent-encode the UTF-8 octets of each value."
        ) from None
    return parameters


def field(headers: Headers, name: str) -> str | None:
    """Return the first value of a header field; None if there is no such field."""
    return next((value for found, value in headers if found.lower() == name), None)


def header(request: ForwardRequest, name: str) -> str | None:
    return field(request.headers, name)


def bounded_int(parameters: dict[str, str], name: str, default: int, *, low: int = 0, high: int) -> int:
    """Return the decimal value of a parameter; ``default`` if it is missing, and ``high`` if it is higher.
    Raises OriginAnswer 400 InvalidArgument if the value is no number, or below ``low``.
    """
    raw = parameters.get(name, "")
    if not raw:
        return default
    if not (raw.isascii() and raw.isdigit() and len(raw) <= 10) or int(raw) < low:
        raise OriginAnswer(400, "InvalidArgument", f"{name} must be an integer from {low} to {high}.")
    return min(int(raw), high)


def url_encoder(parameters: dict[str, str]) -> tuple[str | None, bool]:
    """Return the requested encoding-type, and True if keys must be URL-encoded."""
    encoding = parameters.get("encoding-type")
    if encoding not in {None, "", "url"}:
        raise OriginAnswer(400, "InvalidArgument", 'encoding-type must be "url".')
    return (encoding or None), encoding == "url"


def encode_key(key: str, *, encode: bool) -> str:
    """Return a key as a listing shows it. URL-encoding leaves "/" and unreserved characters unchanged, as in
    S3.
    """
    return quote(key, safe="/-_.~*") if encode else key
