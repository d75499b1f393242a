"""Requests with odd spellings: of names, cases, escapes, duplicates, Connection lists and nested XML."""

from urllib.parse import unquote, unquote_plus

from hypothesis import strategies as st


def raw(line, *fields, body=b""):
    """Return a request as bytes."""
    lines = [f"{line} HTTP/1.1", "Host: h", *fields]
    if body or line.startswith(("PUT", "POST")):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


def meaning(request):
    """Return bucket, key, parameters and fields (by their CGI names) that the sender of a request means.

    The request is one that the proxy has accepted. The function fails if a request has two meanings.
    """
    line, *lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    path, _, query = line.split(" ")[1].partition("?")
    bucket, _, key = unquote(path, errors="strict")[1:].partition("/")
    pairs = [part.partition("=") for part in query.split("&") if part]
    parameters = {unquote_plus(name): unquote_plus(value, errors="strict") for name, _, value in pairs}
    assert len(parameters) == len(pairs), "a parameter twice"
    fields, spellings = {}, {}
    for field in lines:
        name, _, value = field.partition(":")
        cgi = name.upper().replace("-", "_")
        assert spellings.setdefault(cgi, name.lower()) == name.lower(), "two names that are one to a server"
        value = value.strip(" \t")
        fields[cgi] = f"{fields[cgi]},{value}" if cgi in fields else value
    return bucket, key, parameters, fields


_CASES = st.sampled_from([str.lower, str.upper, str.title])
_FIELD_NAMES = (
    "x-amz-acl", "x-amz-copy-source", "x-amz-meta-a-b", "x-amz-meta-a-b", "x-amz-tagging", "x-amz-grant-read",
    "content-type", "content-md5", "cache-control", "x-amz-storage-class", "x-amz-server-side-encryption",
    "x-unknown", "range", "if-match", "user-agent", "x-amz-copy-source-range", "expires",
    "x-rgw-meta-a", "x-http-method-override", "content-language", "x-amz-unheard-of",
)  # fmt: skip
_VALUES = (
    "public-read", "private", "a=b", "ü", "bytes=0-1", "a  b", "a\tb", '"e"', "/read/k", "read/k?versionId=1",
    "/open/mine/a%2Fb", "other/k", "/open/secret", "read%2Fk", "/read/a+b", "", "/", "//read/k", "/read/k#x",
    "/read/%2e%2e/%C3%BC?versionId=a%26b", "/open/mine/../secret", "/read/k?versionid=1", "/read/k%3Fversion",
)  # fmt: skip


def _rarely(draw, one_in):
    return draw(st.integers(1, one_in)) == one_in


@st.composite
def _field_names(draw):
    name = draw(st.sampled_from(_FIELD_NAMES))
    if _rarely(draw, 6):
        at = draw(st.sampled_from([place for place, char in enumerate(name) if char == "-"] or [0]))
        name = name[:at] + draw(st.sampled_from("_.-!~")) + name[at + 1 :]
    if _rarely(draw, 12):
        name = name.replace("-", "_")
    return draw(_CASES)(name)


_FIELDS = st.tuples(_field_names(), st.sampled_from(_VALUES)).map(": ".join)
_OPTIONS = st.one_of(st.sampled_from(["close", "keep-alive", "te", "", "x-odd"]), _field_names())
_CONNECTIONS = st.lists(_OPTIONS, max_size=3).map(lambda names: f"Connection: {', '.join(names)}")
_BUCKETS = ("open", "open", "open", "read", "read", "taken", "other", "ten:open")
_KEYS = (
    "",
    "mine/k",
    "mine/k",
    "mine/a b",
    "mine/../secret",
    "secret",
    "mine//ü",
    "mine/a+b",
    "k",
    "/mine/k",
)
_PARAMETERS = (
    "acl", "tagging", "uploads", "uploadId", "partNumber", "versionId", "prefix", "list-type", "delete",
    "policy", "location", "response-content-type", "odd", "x-id", "x-amz-acl", "append", "max-keys",
)  # fmt: skip
_PARAMETER_VALUES = ("", "", "1", "2", "mine/", "a+b", "a%26b=c", "%C3%BC", "%ff", "a%00")


def _spelled(draw, text):
    """Return ``text`` with some characters escaped: all that must be, and a few others."""
    if not _rarely(draw, 3):
        return "".join(char if char.isascii() and char != " " else _escaped(char) for char in text)
    form = draw(st.sampled_from("xX"))
    return "".join(
        _escaped(char, form) if not char.isascii() or char == " " or _rarely(draw, 8) else char
        for char in text
    )


def _escaped(char, form="X"):
    return "".join(f"%{octet:02{form}}" for octet in char.encode())


@st.composite
def _targets(draw):
    bucket, key = draw(st.sampled_from(_BUCKETS)), draw(st.sampled_from(_KEYS))
    parts = []
    for name in draw(st.lists(st.sampled_from(_PARAMETERS), max_size=2)):
        value = draw(st.sampled_from(_PARAMETER_VALUES))
        parts.append(_spelled(draw, name) + (f"={value}" if value or draw(st.booleans()) else ""))
    query = f"?{'&'.join(parts)}" if parts else ""
    return _spelled(draw, f"/{bucket}/{key}" if key else f"/{bucket}") + query


@st.composite
def _elements(draw, name, inner):
    attribute = draw(st.sampled_from([' a="b"', ' xmlns="urn:x"'])) if _rarely(draw, 10) else ""
    return f"<{name}{attribute}>{draw(inner)}</{name}>"


_KEY_TEXTS = st.sampled_from(
    ["mine/k", "mine/&amp;&#13;", "mine/ü ", "mine/<!-- -->x", "secret", "", "<Key>mine/k</Key>"]
)
_NESTED = _elements("Foo", _elements("Key", _KEY_TEXTS))
_IN_OBJECTS = st.lists(st.one_of(_elements("VersionId", st.just("1")), _NESTED, st.just(" ")), max_size=2)
_OBJECTS = st.tuples(_IN_OBJECTS.filter(lambda parts: len(parts) < 2), _elements("Key", _KEY_TEXTS)).map(
    lambda drawn: "".join([*drawn[0], drawn[1]])
)
_DELETES = st.lists(
    st.one_of(
        _elements("Object", _OBJECTS),
        _elements("Object", _OBJECTS),
        st.just("<Quiet>true</Quiet>"),
        _elements("X", _OBJECTS),
        st.just("x"),
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: f"<Delete>{''.join(parts)}</Delete>".encode())


@st.composite
def odd_requests(draw):
    """Draw a request in one of many spellings, as bytes. The client may have the rights for it or not."""
    method = draw(st.sampled_from(["GET", "HEAD", "PUT", "PUT", "POST", "POST", "DELETE", "OPTIONS"]))
    target, body = draw(_targets()), b""
    if method == "POST" and not _rarely(draw, 4):
        target, body = f"/{draw(st.sampled_from(['open', 'taken']))}?delete", draw(_DELETES)
    elif method in {"PUT", "POST"}:
        body = draw(st.sampled_from([b"", b"body"]))
    fields = draw(st.lists(_FIELDS, max_size=2))
    if _rarely(draw, 4):
        fields.insert(draw(st.integers(0, len(fields))), draw(_CONNECTIONS))
    return raw(f"{method} {target}", *fields, body=body)
