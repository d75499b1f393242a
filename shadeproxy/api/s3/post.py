"""PostObject: turns a browser's form into a PutObject signed by the proxy.

Laws: the policy is verified before the first byte of the file is read. The file is streamed to the origin,
and its last bytes are held back until the form has ended correctly. Only form fields of a closed list may set
properties of the object. Source: "POST Object" in the S3 API reference.
"""

import re
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from urllib.parse import quote, urlencode, urlsplit
from xml.sax.saxutils import escape

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.auth.policy import Upload, authenticate_form
from shadeproxy.api.s3.exchange import Exchange, closing
from shadeproxy.api.s3.fields import check_distinct, check_known, check_value, field_name
from shadeproxy.api.s3.head import TOKEN
from shadeproxy.api.s3.headers import to_client
from shadeproxy.api.s3.operations import Permission
from shadeproxy.api.s3.request import S3Request
from shadeproxy.api.s3.upload.body import UploadBody, receive
from shadeproxy.api.s3.upload.documents import parse_tags
from shadeproxy.api.s3.upload.form import Form, boundary_of
from shadeproxy.api.s3.upload.plan import BodyPlan
from shadeproxy.core.errors import InvalidRequest, MissingLength, OriginError
from shadeproxy.core.sigv4 import path_of_key
from shadeproxy.core.types import Headers, ObjectRef, first_value
from shadeproxy.engine.base import ReadPath
from shadeproxy.origin.base import ForwardRequest, ForwardResponse

_OF_THE_OBJECT = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
    }
)
_NAME = re.compile(TOKEN)
_OF_THE_OBJECT_PREFIXES = (
    "x-amz-meta-",
    "x-amz-checksum-",
    "x-amz-server-side-encryption",
    "x-amz-object-lock-",
)
_OF_THE_OBJECT_AMZ = frozenset({"x-amz-storage-class", "x-amz-website-redirect-location"})


def form_boundary(request: S3Request) -> bytes | None:
    """Return the boundary of the form in a PostObject; None for any other request. Raises InvalidRequest."""
    if request.method != "POST" or not request.bucket or request.key or request.raw_query:
        return None
    return boundary_of(request.fields.get("content-type", ""))


class PostUploads:
    """Answers PostObject requests. ``engine`` carries out the PutObject that is made from each form."""

    def __init__(self, engine: ReadPath, authenticator: Authenticator) -> None:
        self._engine = engine
        self._authenticator = authenticator

    async def serve(self, exchange: Exchange, request: S3Request, boundary: bytes) -> None:
        """Answer a form upload. Raises RequestError for a bad form or policy, OriginError."""
        exchange.operation = "PostObject"
        length = request.fields.get("content-length")
        if length is None:
            raise MissingLength("You must provide the Content-Length HTTP header")
        async with aclosing(receive(exchange.incoming.body)) as source:
            form = Form(source, boundary, int(length))
            await form.read_fields()
            fields = form.fields
            key = _key(fields, form.filename)
            upload = Upload(request.bucket, key, fields, form.file_length)
            identity = authenticate_form(self._authenticator, upload, now_s=exchange.now_s)
            exchange.count_as(identity)
            ref = ObjectRef(request.bucket, key, identity.namespace)
            identity.check(Permission.WRITE, ref.bucket, ref.key)
            headers = await _headers(fields, request.fields.get("origin"))
            body = UploadBody(BodyPlan(form.file_length), form.file())
            try:
                async with closing(body.pieces()) as pieces:
                    forwarded = ForwardRequest(
                        method="PUT",
                        ref=ref,
                        raw_path=f"/{quote(ref.bucket, safe='-_.~')}/{path_of_key(ref.key)}",
                        headers=headers,
                        body=pieces,
                        content_length=form.file_length,
                        upstream=identity.upstream,
                        request_id=exchange.request_id,
                    )
                    location = _location(exchange, request, ref)
                    await self._put(exchange, forwarded, body, fields, location)
            except OriginError as error:
                if body.failure is not None:
                    raise body.failure from error
                raise
            finally:
                exchange.bytes_received = body.received_bytes

    async def _put(
        self,
        exchange: Exchange,
        forwarded: ForwardRequest,
        body: UploadBody,
        fields: Mapping[str, str],
        location: str,
    ) -> None:
        async with AsyncExitStack() as writing:
            here = await writing.enter_async_context(self._engine.writing((forwarded.ref,)))
            if here is not None:
                forwarded = replace(forwarded, here=here)
            async with self._engine.forward(forwarded) as answer:
                if body.failure is not None:
                    raise body.failure
                await writing.aclose()
                if answer.status != 200:
                    await _relay(exchange, answer)
                    return
                status, headers, document = _success(forwarded.ref, location, fields, answer)
                response = exchange.pass_on(status, headers, answer.relayed)
                await response.write_eof(document)


async def _relay(exchange: Exchange, answer: ForwardResponse) -> None:
    response = exchange.pass_on(answer.status, to_client(answer.headers), answer.relayed)
    async with closing(answer.chunks) as chunks:
        async for chunk in chunks:
            await response.write(chunk)
    await response.write_eof()


def _location(exchange: Exchange, request: S3Request, ref: ObjectRef) -> str:
    """Return the URL of the object, in the addressing style that the request used."""
    bucket = f"/{quote(ref.bucket)}" if request.wire_path == request.raw_path else ""
    return f"{exchange.incoming.scheme}://{request.host}{bucket}/{quote(ref.key, safe='')}"


def _key(fields: Mapping[str, str], filename: str) -> str:
    key = fields.get("key", "").replace("${filename}", filename)
    if not key:
        raise InvalidRequest("The form holds no key", hint="write the field key before the file")
    if "\0" in key:
        raise InvalidRequest("A key cannot hold the character NUL")
    return key


async def _headers(fields: Mapping[str, str], site: str | None) -> Headers:
    """Return the header fields of the PutObject, from the form's fields that describe the object. Raises
    InvalidRequest, MalformedBody.
    """
    headers = [
        (name, value)
        for name, value in fields.items()
        if name in _OF_THE_OBJECT or name in _OF_THE_OBJECT_AMZ or name.startswith(_OF_THE_OBJECT_PREFIXES)
    ]
    if "acl" in fields:
        headers.append(("x-amz-acl", fields["acl"]))
    if "tagging" in fields:
        headers.append(("x-amz-tagging", await parse_tags(fields["tagging"])))
    if site is not None:
        headers.append(("Origin", site))
    if not all(_NAME.fullmatch(name) for name, _ in headers):
        raise InvalidRequest("A field of the form has a name that cannot be that of a header of the object")
    check_distinct(name.lower() for name, _ in headers)
    check_known({name.lower(): value for name, value in headers})
    if any(char in value for _, value in headers for char in "\r\n\0"):
        raise InvalidRequest("A field of the form holds a line break, so it cannot be a header of the object")
    for name, value in headers:
        field_name(name)
        check_value(name, value)
    return tuple(headers)


def _is_url(text: str) -> bool:
    try:
        scheme = urlsplit(text).scheme
    except ValueError:
        return False
    return scheme in {"http", "https"} and text.isascii() and text.isprintable()


def _success(
    ref: ObjectRef, location: str, fields: Mapping[str, str], answer: ForwardResponse
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return status, header fields and body of the answer that the form asks for."""
    kept = [
        pair
        for pair in to_client(answer.headers)
        if pair[0].lower() not in {"content-length", "content-type", "location"}
    ]
    etag = first_value(kept, "etag")
    redirect = fields.get("success_action_redirect", fields.get("redirect", ""))
    if _is_url(redirect):
        mark = "&" if "?" in redirect else "?"
        query = urlencode({"bucket": ref.bucket, "key": ref.key, "etag": etag})
        return 303, [*kept, ("Location", f"{redirect}{mark}{query}"), ("Content-Length", "0")], b""
    status = fields.get("success_action_status")
    kept.append(("Location", location))
    if status == "201":
        elements = {"Location": location, "Bucket": ref.bucket, "Key": ref.key, "ETag": etag}
        inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in elements.items())
        document = f'<?xml version="1.0" encoding="UTF-8"?>\n<PostResponse>{inner}</PostResponse>'.encode()
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(document)))]
        return 201, [*kept, *headers], document
    if status == "200":
        return 200, [*kept, ("Content-Length", "0")], b""
    return 204, kept, b""
