"""Sends writes: the calls of S3 that make or remove an object. One write may take several requests."""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple

from shadeproxy_bench.reliability.cluster.bodies import BUCKET, body_of, key_of, stage_of
from shadeproxy_bench.reliability.cluster.http import REFUSED, Answer, Connections
from shadeproxy_bench.reliability.cluster.judge import ACKNOWLEDGED, NOT_DONE, UNKNOWN

PUT, MULTIPART, COPY, DELETE, DELETE_MANY = "PUT", "multipart", "copy", "DELETE", "DeleteObjects"
REMOVALS: Final = frozenset({DELETE, DELETE_MANY})
_PARTS = 2


class Sent(NamedTuple):
    """The last answer to the requests of one write. ``asked``: whether the request was sent that makes the
    origin carry the write out.
    """

    answer: Answer
    asked: bool


async def send(
    connections: Connections, port: int, kind: str, numbers: Sequence[int], *, seq: int, pauses: int
) -> Sent:
    """Send a write to the proxy at ``port``. Only ``DELETE_MANY`` writes to more than one object. ``pauses``:
    number of pauses in the upload of a body.
    """
    number = numbers[0]
    target = f"/{BUCKET}/{key_of(number)}"
    if kind == DELETE:
        return Sent(await connections.ask(port, "DELETE", target), asked=True)
    if kind == DELETE_MANY:
        keys = "".join(f"<Object><Key>{key_of(one)}</Key></Object>" for one in numbers)
        document = f"<Delete>{keys}</Delete>".encode()
        answer = await connections.ask(port, "POST", f"/{BUCKET}?delete", _summed(document), document)
        return Sent(answer, asked=True)
    body = body_of(number, seq)
    if kind == PUT:
        return Sent(await connections.ask(port, "PUT", target, body=body, pauses=pauses), asked=True)
    if kind == COPY:
        stage = f"/{BUCKET}/{stage_of(number, seq)}"
        answer = await connections.ask(port, "PUT", stage, body=body)
        if answer.status != 200:
            return Sent(answer, asked=False)
        return Sent(await connections.ask(port, "PUT", target, {"x-amz-copy-source": stage}), asked=True)
    return await _upload(connections, port, target, body)


def outcome_of(kind: str, number: int, sent: Sent) -> str:
    """Return the outcome of a write for the object ``number``."""
    answer = sent.answer
    if not sent.asked:
        return NOT_DONE
    if answer.status == 200 and kind == DELETE_MANY:
        removed = f"<Deleted><Key>{key_of(number)}</Key>".encode() in answer.body
        return ACKNOWLEDGED if removed else UNKNOWN
    if answer.status in {200, 204}:
        # S3 may answer a multipart upload or a copy with 200 and an error in the document.
        told = kind in {MULTIPART, COPY} and b"<Error>" in answer.body
        return UNKNOWN if told else ACKNOWLEDGED
    return NOT_DONE if answer.status == 503 or answer.failure == REFUSED else UNKNOWN


def code_of(body: bytes) -> str:
    """Return the code of an error document; "" if there is none."""
    return _text_of(body, b"Code")


def message_of(body: bytes) -> str:
    """Return the message of an error document; "" if there is none."""
    return _text_of(body, b"Message")


def _text_of(body: bytes, element: bytes) -> str:
    """Return the text of the first element called ``element`` in a document; "" if there is none."""
    return body.partition(b"<%b>" % element)[2].partition(b"</%b>" % element)[0].decode()


async def _upload(connections: Connections, port: int, target: str, body: bytes) -> Sent:
    answer = await connections.ask(port, "POST", f"{target}?uploads")
    if answer.status != 200:
        return Sent(answer, asked=False)
    upload = _text_of(answer.body, b"UploadId")
    step, listed = -(-len(body) // _PARTS), ""
    for part in range(1, _PARTS + 1):
        piece = body[(part - 1) * step : part * step]
        query = f"partNumber={part}&uploadId={upload}"
        answer = await connections.ask(port, "PUT", f"{target}?{query}", body=piece)
        if answer.status != 200:
            return Sent(answer, asked=False)
        tag = answer.fields["etag"]
        listed += f"<Part><PartNumber>{part}</PartNumber><ETag>{tag}</ETag></Part>"
    document = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    return Sent(await connections.ask(port, "POST", f"{target}?uploadId={upload}", body=document), asked=True)


def _summed(body: bytes) -> dict[str, str]:
    """Return the header field with the checksum of a body. S3 refuses DeleteObjects without it."""
    return {"Content-MD5": b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()}
