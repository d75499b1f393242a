"""Requests as clients send them: every operation, every way to send a body, every way to sign.

The requests are drawn from a ``Random``. One ``Forms`` is one client with a bucket of its own.
"""

import base64
import hashlib
import hmac
import json
import zlib
from collections.abc import Callable
from copy import deepcopy
from random import Random

from shadeproxy.core.sigv4 import EMPTY_SHA256, UNSIGNED_PAYLOAD, Credentials, Scope, signing_key
from shadeproxy_bench.reliability.fuzz import values
from shadeproxy_bench.reliability.fuzz.http import Request, quoted, transfer_chunks
from shadeproxy_bench.reliability.fuzz.signing import AMZ_DATE, NOW_S, REGION, choose, seed_of, sign

KEYS = ("a", "b/c", "ümlaut+%.bin", "a//b", "../up", "sp ace", "big", "pages", "empty", "k" * 900)
STILL = "still"
"""Key of an object that is read again and again and never written. Only requests for it are repeated, so that
the request cache remembers them.
"""

SIZES = {STILL: 4000, "a": 10, "b/c": 4096, "big": 300_000, "pages": 40_000, "empty": 0}
_SUB_RESOURCES = (
    "acl", "tagging", "versioning", "policy", "cors", "lifecycle", "location", "versions", "uploads",
    "retention", "legal-hold", "attributes", "torrent", "restore", "select", "website", "logging",
    "encryption", "object-lock", "policyStatus", "publicAccessBlock", "replication", "inventory",
)  # fmt: skip


class Forms:
    """Draws the requests of one client. ``bucket``: only this client uses it, so that answers do not depend
    on other clients.
    """

    def __init__(self, random: Random, bucket: str) -> None:
        self._random = random
        self._bucket = bucket

    def draw(self) -> Request:
        """Return a request without damage. Its signature may be made with a wrong key."""
        one = self._random.choice
        form: Callable[[], Request] = one(
            (self._get,) * 8
            + (self._put,) * 4
            + (self._put_streamed,) * 3
            + (self._form_upload,) * 2
            + (self._delete_objects, self._complete, self._create, self._part, self._list, self._list)
            + (self._copy, self._delete, self._sub_resource, self._sub_resource, self._service, self._options)
        )
        return form()

    # ------------------------------------------------------------------ reads

    def again(self) -> list[Request]:
        """Return the same plain read three times. The fast lane remembers it after the first time."""
        request = self._request("GET", STILL)
        for name, value in (("x-shade-job", "job;epoch=1;rank=0"), ("x-amz-checksum-mode", "ENABLED")):
            if self._random.random() < 0.2:
                request.add(name, value)
        self._settle(request, EMPTY_SHA256)
        return [deepcopy(request) for _ in range(3)]

    def _get(self) -> Request:
        random = self._random
        request = self._request(random.choice(("GET", "GET", "GET", "HEAD")), self._key())
        for name, chance, value in (
            ("Range", 0.4, values.byte_range),
            ("If-Match", 0.1, values.entity_tag),
            ("If-None-Match", 0.1, values.entity_tag),
            ("If-Modified-Since", 0.1, values.date),
            ("If-Unmodified-Since", 0.1, values.date),
            ("If-Range", 0.1, values.date),
            ("Cache-Control", 0.1, values.cache_control),
            ("x-shade-job", 0.1, values.job),
            ("x-amz-checksum-mode", 0.1, lambda _: "ENABLED"),
            ("Origin", 0.03, lambda _: "http://site.example"),
        ):
            if random.random() < chance:
                request.add(name, value(random))
        if random.random() < 0.1:
            name = random.choice(("response-content-type", "versionId", "partNumber", "response-expires"))
            request.parameter(name, random.choice(("1", "null", "text/plain")))
        return self._settle(request, EMPTY_SHA256)

    def _list(self) -> Request:
        random = self._random
        request = self._request("GET", "")
        if random.random() < 0.7:
            request.parameter("list-type", "2")
        for name in values.LISTING:
            if random.random() < 0.25:
                request.parameter(name, values.of_listing(random, name))
        return self._settle(request, EMPTY_SHA256)

    def _service(self) -> Request:
        request = Request(b"GET", b"/", fields=[(b"Host", b"s3.fuzz.example")])
        return self._settle(request, EMPTY_SHA256)

    def _options(self) -> Request:
        request = self._request("OPTIONS", self._key())
        request.add("Origin", "http://site.example")
        request.add("Access-Control-Request-Method", self._random.choice(("PUT", "GET", "BREW")))
        return request

    def _sub_resource(self) -> Request:
        random = self._random
        method = random.choice(("GET", "GET", "PUT", "DELETE", "POST"))
        request = self._request(method, random.choice(("", self._key())))
        request.parameter(random.choice(_SUB_RESOURCES))
        if method in {"PUT", "POST"}:
            return self._with_body(request, values.document(random))
        return self._settle(request, EMPTY_SHA256)

    # ------------------------------------------------------------------ writes

    def _put(self) -> Request:
        random = self._random
        key = self._key()
        request = self._request("PUT", key)
        for name in ("Content-Type", "Content-Encoding", "x-amz-meta-note", "Cache-Control", "Expires"):
            if random.random() < 0.15:
                request.add(name, values.of_metadata(random, name))
        if random.random() < 0.1:
            request.add(random.choice(("If-None-Match", "If-Match")), random.choice(("*", '"x"')))
        return self._with_body(request, values.body(random, SIZES.get(key)))

    def _delete(self) -> Request:
        return self._settle(self._request("DELETE", self._key()), EMPTY_SHA256)

    def _copy(self) -> Request:
        request = self._request("PUT", self._key())
        request.fields.append(
            (b"x-amz-copy-source", b"/%b/%b" % (self._bucket.encode(), quoted(self._key())))
        )
        if self._random.random() < 0.3:
            request.add("x-amz-metadata-directive", self._random.choice(("COPY", "REPLACE")))
        request.add("Content-Length", "0")
        return self._settle(request, EMPTY_SHA256)

    def _create(self) -> Request:
        request = self._request("POST", self._key())
        request.parameter("uploads")
        return self._with_body(request, b"")

    def _part(self) -> Request:
        request = self._request("PUT", self._key())
        request.parameter("partNumber", self._random.choice(("1", "2", "0", "10001")))
        request.parameter("uploadId", self._upload())
        return self._with_body(request, values.body(self._random, None))

    def _complete(self) -> Request:
        request = self._request("POST", self._key())
        request.parameter("uploadId", self._upload())
        return self._with_body(request, values.complete_document(self._random))

    def _delete_objects(self) -> Request:
        request = self._request("POST", "")
        request.parameter("delete")
        document = values.delete_document(self._random, KEYS)
        digest = base64.b64encode(hashlib.md5(document, usedforsecurity=False).digest()).decode()
        request.add("Content-MD5", digest)
        return self._with_body(request, document)

    def _put_streamed(self) -> Request:
        """Return an upload in aws-chunked form. It is signed or not, has a trailer or not, and is framed by
        Content-Length or by chunked transfer.
        """
        random = self._random
        body = values.body(random, None)
        signed, trailing = random.choice(((True, False), (True, True), (False, True)))
        form = "AWS4-HMAC-SHA256-PAYLOAD" if signed else "UNSIGNED-PAYLOAD"
        payload_hash = f"STREAMING-{form}{'-TRAILER' if trailing else ''}"
        request = self._request("PUT", self._key())
        request.add("Content-Encoding", "aws-chunked")
        request.add("x-amz-decoded-content-length", str(len(body)))
        if trailing:
            request.add("x-amz-trailer", "x-amz-checksum-crc32")
        keys = choose(random)
        sign(request, keys, payload_hash, random)
        cut = [body[start : start + 8192] for start in range(0, len(body), 8192)]
        request.wire = aws_chunked(cut, keys if signed else None, seed_of(request), trailing=trailing)
        return _framed(request, random)

    def _form_upload(self) -> Request:
        random = self._random
        key = random.choice(("form/a", "form/${filename}", self._key()))
        fields = {"key": key, "Content-Type": "text/plain", "x-amz-meta-form": "1"}
        if random.random() < 0.5:
            fields["success_action_status"] = random.choice(("200", "201", "204", "999"))
        if random.random() < 0.3:
            fields["success_action_redirect"] = values.redirect(random)
        if random.random() < 0.2:
            fields["tagging"] = values.tagging_document(random)
        if random.random() < 0.7:
            fields |= _policy(fields, self._bucket, choose(random), random)
        request = self._request("POST", "")
        boundary = "form-boundary"
        request.add("Content-Type", f"multipart/form-data; boundary={boundary}")
        request.wire = values.form(random, fields, boundary.encode(), values.body(random, None))
        request.add("Content-Length", str(len(request.wire)))
        return request

    # ------------------------------------------------------------------ parts of all

    def _request(self, method: str, key: str) -> Request:
        path = f"/{self._bucket}".encode() + (b"/" + quoted_path(key) if key else b"")
        if self._random.random() < 0.05:
            path = b"/" + path.removeprefix(b"/").partition(b"/")[2]
            return Request(
                method.encode(), path, fields=[(b"Host", f"{self._bucket}.s3.fuzz.example".encode())]
            )
        return Request(method.encode(), path, fields=[(b"Host", b"s3.fuzz.example")])

    def _key(self) -> str:
        return self._random.choice(KEYS)

    def _upload(self) -> str:
        """Return an id of a multipart upload. Most of the ids belong to no upload."""
        return self._random.choice(("0" * 32, "x", "", hashlib.md5(self._bucket.encode()).hexdigest()))

    def _with_body(self, request: Request, body: bytes) -> Request:
        random = self._random
        digest = hashlib.sha256(body).hexdigest()
        payload_hash = random.choice((digest, UNSIGNED_PAYLOAD))
        self._settle(request, payload_hash)
        request.wire = body
        if random.random() < 0.1:
            request.add("Expect", "100-continue")
        if random.random() < 0.15:
            request.add("Transfer-Encoding", "chunked")
            middle = random.randrange(len(body) + 1)
            request.wire = transfer_chunks([body[:middle], body[middle:]])
            return request
        request.add("Content-Length", str(len(body)))
        return request

    def _settle(self, request: Request, payload_hash: str) -> Request:
        """Sign the request with probability 0.6, and return it."""
        if self._random.random() < 0.6:
            sign(request, choose(self._random), payload_hash, self._random)
        return request


def quoted_path(key: str) -> bytes:
    """Return a key as a part of a path, percent-encoded."""
    return b"/".join(quoted(part) for part in key.split("/"))


def _framed(request: Request, random: Random) -> Request:
    if random.random() < 0.3:
        request.add("Transfer-Encoding", "chunked")
        request.wire = transfer_chunks([request.wire])
    else:
        request.add("Content-Length", str(len(request.wire)))
    return request


def aws_chunked(pieces: list[bytes], keys: Credentials | None, seed: str, *, trailing: bool) -> bytes:
    """Return ``pieces`` in aws-chunked form. With ``keys`` the chunks are signed, in a chain that begins with
    the signature ``seed``. ``trailing``: append a CRC32 as a trailer.
    """
    out, previous = b"", seed
    scope = Scope(AMZ_DATE[:8], REGION)
    key = signing_key(keys.secret_key, scope) if keys is not None else b""

    def follow(algorithm: str, rest: str) -> str:
        nonlocal previous
        text = f"{algorithm}\n{AMZ_DATE}\n{scope}\n{previous}\n{rest}"
        previous = hmac.digest(key, text.encode(), "sha256").hex()
        return previous

    for piece in [*pieces, b""]:
        signature = ""
        if keys is not None:
            rest = f"{EMPTY_SHA256}\n{hashlib.sha256(piece).hexdigest()}"
            signature = f";chunk-signature={follow('AWS4-HMAC-SHA256-PAYLOAD', rest)}"
        out += f"{len(piece):x}{signature}\r\n".encode() + (piece + b"\r\n" if piece else b"")
    if trailing:
        value = base64.b64encode(zlib.crc32(b"".join(pieces)).to_bytes(4, "big")).decode()
        out += f"x-amz-checksum-crc32:{value}\r\n".encode()
        if keys is not None:
            digest = hashlib.sha256(f"x-amz-checksum-crc32:{value}\n".encode()).hexdigest()
            out += f"x-amz-trailer-signature:{follow('AWS4-HMAC-SHA256-TRAILER', digest)}\r\n".encode()
    return out + b"\r\n"


def _policy(fields: dict[str, str], bucket: str, keys: Credentials, random: Random) -> dict[str, str]:
    conditions: list[object] = [{"bucket": bucket}, ["starts-with", "$key", ""]]
    conditions += [["eq", f"${name}", value] for name, value in fields.items() if name != "key"]
    conditions.append(["content-length-range", 0, random.choice((10, 1_000_000))])
    conditions += values.odd_conditions(random)
    scope = Scope(AMZ_DATE[:8], REGION)
    signing = {
        "x-amz-algorithm": "AWS4-HMAC-SHA256",
        "x-amz-credential": f"{keys.access_key}/{scope}",
        "x-amz-date": AMZ_DATE,
    }
    if keys.session_token:
        signing["x-amz-security-token"] = keys.session_token
    conditions += [{name: value} for name, value in signing.items()]
    document = {"expiration": values.expiration(random, NOW_S), "conditions": conditions}
    policy = base64.b64encode(json.dumps(document).encode()).decode()
    digest = hmac.digest(signing_key(keys.secret_key, scope), policy.encode(), "sha256").hex()
    return {**signing, "policy": policy, "x-amz-signature": digest}
