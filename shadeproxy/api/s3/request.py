"""An S3 request as a value, decoded once.

Laws: the path and the query as they were sent are used only to verify the signature. For decisions and for
the origin's request the decoded values are used (`bucket`, `key`, `query`, `fields`). These values are never
normalised: `a//b` and dot segments stay. A request that cannot be decoded, or that two parsers could read
differently, is refused here (InvalidRequest).
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from shadeproxy.api.s3.fields import collect_fields
from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.sigv4 import path_of_key
from shadeproxy.core.types import NAME_PATTERN, JobContext

BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
BUCKET_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,255}")
"""The pattern of a bucket's name. It allows no ":", which Ceph RGW reads as the end of a tenant's name."""

UNRESERVED = "-_.~"
_PLAIN = re.compile(r"[A-Za-z0-9._~-]*")
_ASCII = "".join(map(chr, range(0x21, 0x7F)))
_VISIBLE = re.compile(r"[!-~]*")
PLAIN_LINE = re.compile(rb"GET (/[A-Za-z0-9][\w.-]{0,254}/[\w./~!$&'()*+,:;=@-]{1,1024}) HTTP/1\.1\r\n")
"""The request line of a GET of an object whose name has no escapes."""

NO_QUERY: Mapping[str, str] = MappingProxyType({})
_JOB_NAME = re.compile(NAME_PATTERN)
_JOB_NUMBER = re.compile(r"\d{1,9}")


class S3Request(NamedTuple):
    """One parsed request.

    ``wire_path`` is the path as the client sent and signed it. ``raw_query`` is the query as sent, but pure
    ASCII. ``raw_path`` is the path as sent, but in path style ("/bucket/key") and pure ASCII. ``bucket`` and
    ``key`` are "" if the request names none. ``query`` has decoded names and values. ``fields`` has
    lower-case names in the order of the request; the values of a repeated name are joined.
    """

    method: str
    host: str
    wire_path: str
    raw_path: str
    raw_query: str
    bucket: str
    key: str
    query: Mapping[str, str]
    fields: Mapping[str, str]
    job: JobContext | None = None

    @property
    def path(self) -> str:
        """The path in path style, encoded as the origin gets it."""
        return f"/{self.bucket}/{path_of_key(self.key)}" if self.key else f"/{self.bucket}"

    @property
    def query_string(self) -> str:
        """The query, encoded as the origin gets it. A parameter without a value has no "="."""
        return "&".join(
            f"{_encoded(name)}={_encoded(value)}" if value else _encoded(name)
            for name, value in self.query.items()
        )


def parse_request(
    method: str, target: str, headers: Iterable[tuple[str, str]], *, base_domains: tuple[str, ...] = ()
) -> S3Request:
    """Parse ``target``, from the request line, and the header fields. Both are text decoded from UTF-8 with
    surrogateescape.

    ``base_domains``: lower-case host names of the proxy under which a bucket may be a subdomain: with
    "s3.local", ``Host: bucket.s3.local`` names the bucket. Raises InvalidRequest.
    """
    fields = collect_fields(headers)
    host = fields.get("host", "")
    wire_path, raw_query = _split_target(target, host)
    prefix = _virtual_bucket(host, base_domains)
    raw_path = _escaped(wire_path if prefix is None else f"/{prefix}{wire_path}")
    bucket, key = _split_path(wire_path, prefix)
    return S3Request(
        method=method,
        host=host,
        wire_path=wire_path,
        raw_path=raw_path,
        raw_query=_escaped(raw_query),
        bucket=bucket,
        key=key,
        query=MappingProxyType(_query(raw_query)),
        fields=MappingProxyType(fields),
        job=parse_job(fields.get("x-shade-job")),
    )


def parse_job(field: str | None) -> JobContext | None:
    """Parse a value of ``x-shade-job``, like ``name;epoch=3;rank=0``. Raises InvalidRequest."""
    if field is None:
        return None
    name, *parameters = (part.strip() for part in field.split(";"))
    numbers: dict[str, int] = {}
    for parameter in parameters:
        label, _, value = parameter.partition("=")
        if label not in {"epoch", "rank"} or not _JOB_NUMBER.fullmatch(value):
            name = ""
            break
        numbers[label] = int(value)
    if not _JOB_NAME.fullmatch(name):
        raise InvalidRequest(
            "The x-shade-job header cannot be understood",
            hint="write it as name;epoch=3;rank=0; names are 1 to 128 of A-Z a-z 0-9 . _ @ + = - and start"
            " with a letter or digit",
        )
    return JobContext(name, numbers.get("epoch"), numbers.get("rank"))


def parameter_name(part: str) -> str:
    """Return the decoded name of one ``name=value`` in a raw query. Raises InvalidRequest."""
    return _decode_parameter(part.partition("=")[0])


def _encoded(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else quote(text, safe=UNRESERVED)


def _decode_parameter(raw: str) -> str:
    if "%" not in raw and "+" not in raw:
        return raw
    try:
        return unquote(raw.replace("+", "%20"), errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest("The query must be UTF-8") from None


def _split_target(target: str, host: str) -> tuple[str, str]:
    if not target.startswith("/"):
        target = _without_authority(target, host)
    path, _, raw_query = target.partition("?")
    if not path.startswith("/") or "#" in target or not _is_utf8(target):
        raise InvalidRequest("The request target is not a path in UTF-8 that starts with /")
    if BAD_ESCAPE.search(target):
        raise InvalidRequest(
            "The request target holds a % that two hexadecimal digits do not follow",
            hint="write a literal % as %25",
        )
    return path, raw_query


def _without_authority(target: str, host: str) -> str:
    """Return path and query of a target in absolute form. Raises InvalidRequest if Host names
    another server.
    """
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() not in {"http", "https"}:
        return target
    slash = rest.find("/")
    authority, path = (rest[:slash], rest[slash:]) if slash >= 0 else (rest, "/")
    if authority.lower() != host.lower():
        raise InvalidRequest("The request target and the Host header name two servers")
    return path


def _virtual_bucket(host: str, base_domains: tuple[str, ...]) -> str | None:
    if not base_domains:
        return None
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    for domain in base_domains:
        if name.lower().endswith(f".{domain}"):
            return name[: -len(domain) - 1]
    return None


def _split_path(wire_path: str, virtual_bucket: str | None) -> tuple[str, str]:
    if virtual_bucket is None:
        raw_bucket, _, raw_key = wire_path[1:].partition("/")
        if not raw_bucket and not raw_key and wire_path == "/":
            return "", ""
    else:
        raw_bucket, raw_key = virtual_bucket, wire_path[1:]
    bucket = decode_key(raw_bucket)
    if not BUCKET_NAME.fullmatch(bucket):
        raise InvalidRequest("The bucket name is not valid")
    return bucket, decode_key(raw_key)


def _escaped(text: str) -> str:
    return text if _VISIBLE.fullmatch(text) else quote(text, safe=_ASCII)


def decode_key(raw: str) -> str:
    """Decode the name of a bucket or of a key. Raises InvalidRequest if no server can store such a name."""
    if "%" not in raw:
        return raw
    try:
        key = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The bucket and key must be UTF-8") from None
    if "\0" in key:
        raise InvalidRequest("A key cannot hold the character NUL")
    return key


def _query(raw_query: str) -> dict[str, str]:
    query: dict[str, str] = {}
    for part in raw_query.split("&"):
        if not part:
            continue
        name, (_, _, raw_value) = parameter_name(part), part.partition("=")
        if name in query:
            raise InvalidRequest(f"The query parameter {name} was sent more than once")
        query[name] = _decode_parameter(raw_value)
    return query


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text) if not text.isascii() else True
