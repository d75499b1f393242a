"""Browser uploads: the forms that a browser sends, and policies that boto3 has signed."""

import boto3
from botocore.config import Config

from tests.support.s3.clients import ACCESS, SECRET

FILE = b"the file\r\n--not the boundary\r\n" + bytes(range(256)) * 40


def presigned(version="s3v4", *, secret=SECRET, key="up/${filename}", fields=None, conditions=(), expires=60):
    client = boto3.client(
        "s3",
        endpoint_url="http://h",
        region_name="us-east-1",
        aws_access_key_id=ACCESS,
        aws_secret_access_key=secret,
        config=Config(signature_version=version),
    )
    fields = dict(fields or {})
    covered = [{name: value} for name, value in fields.items()]
    return client.generate_presigned_post("b", key, fields, [*covered, *conditions], expires)["fields"]


def form(fields, file=FILE, *, filename="a b.bin", after="", end="--X--\r\n"):
    parts = [
        f'--X\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    head = f'--X\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
    body = "".join([*parts, head, "Content-Type: application/x\r\n\r\n"]).encode() + file
    return body + b"\r\n" + after.encode() + end.encode()


async def post(proxy, body, *lines, target="/b"):
    head = "\r\n".join(
        [
            f"POST {target} HTTP/1.1",
            "Host: h",
            "Connection: close",
            "Content-Type: multipart/form-data; boundary=X",
            f"Content-Length: {len(body)}",
            *lines,
        ]
    )
    return await proxy.raw(f"{head}\r\n\r\n".encode() + body)
