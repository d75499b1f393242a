"""boto3 with default settings, as in a script that has only ``boto3.client("s3", endpoint_url=...)``."""

import hashlib
import os
import random
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import boto3
import botocore
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.support.routes import DOMAIN

_EXPIRED_S = 3.0
"""Seconds after which a URL that is valid for one second has expired."""


class Operations:
    version = f"boto3 {boto3.__version__}, botocore {botocore.__version__}"

    def __init__(self, where: Any) -> None:
        self._where = where
        self._client = boto3.client("s3", endpoint_url=where.endpoint)

    def put(self, path: str, key: str) -> None:
        self._client.upload_file(path, self._where.bucket, key)

    def get(self, key: str, path: str) -> None:
        self._client.download_file(self._where.bucket, key, path)

    def part(self, key: str, start: int, stop: int, path: str) -> None:
        answer = self._client.get_object(
            Bucket=self._where.bucket, Key=key, Range=f"bytes={start}-{stop - 1}"
        )
        assert answer["ContentLength"] == stop - start, answer
        Path(path).write_bytes(answer["Body"].read())

    def resume(self, key: str, path: str) -> None:
        etag = self._client.head_object(Bucket=self._where.bucket, Key=key)["ETag"]
        with Path(path).open("ab") as file:
            answer = self._client.get_object(
                Bucket=self._where.bucket, Key=key, Range=f"bytes={file.tell()}-", IfMatch=etag
            )
            file.writelines(answer["Body"].iter_chunks(1 << 20))

    def listing(self, prefix: str) -> list[tuple[str, int]]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._where.bucket, Prefix=prefix, PaginationConfig={"PageSize": 3}
        )
        return [(entry["Key"], entry["Size"]) for page in pages for entry in page.get("Contents", ())]

    def delete(self, keys: list[str]) -> None:
        answer = self._client.delete_objects(
            Bucket=self._where.bucket, Delete={"Objects": [{"Key": key} for key in keys]}
        )
        assert not answer.get("Errors"), answer

    def try_put_object_bytes_and_file(self, scratch: str) -> None:
        """put_object from bytes and from a file (trailing checksum: chunked over TLS), read back"""
        for at, size in enumerate((0, 1, 70_000, 17 << 20)):
            body = random.Random(at).randbytes(size)
            path = Path(scratch) / "up"
            path.write_bytes(body)
            with path.open("rb") as file:
                for name, sent in (("bytes", body), ("file", file)):
                    self._client.put_object(Bucket=self._where.bucket, Key=f"put/{name}", Body=sent)
                    answer = self._client.get_object(Bucket=self._where.bucket, Key=f"put/{name}")
                    assert answer["Body"].read() == body, (name, size)

    def try_each_checksum_algorithm(self, scratch: str) -> None:
        """put_object with CRC32, SHA1 and SHA256, in header and trailer"""
        body = bytes(range(256)) * 1000
        path = Path(scratch) / "up"
        path.write_bytes(body)
        for algorithm in ("CRC32", "SHA1", "SHA256"):
            with path.open("rb") as file:
                self._client.put_object(
                    Bucket=self._where.bucket, Key="sum", Body=file, ChecksumAlgorithm=algorithm
                )
            assert self._client.get_object(Bucket=self._where.bucket, Key="sum")["Body"].read() == body

    def try_presigned(self, scratch: str) -> None:
        """presigned GET, PUT, HEAD, DELETE with curl: SigV2 (boto3's default here) and SigV4"""
        for signature, marks in (
            ("", "AWSAccessKeyId="),
            ("s3", "AWSAccessKeyId="),
            ("s3v4", "X-Amz-Signature="),
        ):
            client = boto3.client(
                "s3",
                endpoint_url=self._where.endpoint,
                config=Config(signature_version=signature) if signature else None,
            )
            named = {"Bucket": self._where.bucket, "Key": f"signed/ü a&b+{signature}"}
            body = random.Random(signature).randbytes(300_000)
            up, down = Path(scratch) / "up", Path(scratch) / "down"
            up.write_bytes(body)
            url = client.generate_presigned_url("put_object", Params=named)
            assert marks in url, url
            _curl("-T", str(up), url)
            for _ in ("cold", "warm"):
                _curl("-o", str(down), client.generate_presigned_url("get_object", Params=named))
                assert down.read_bytes() == body, signature
            _curl(
                "-r", "1000-1999", "-o", str(down), client.generate_presigned_url("get_object", Params=named)
            )
            assert down.read_bytes() == body[1000:2000], signature
            _curl("-I", client.generate_presigned_url("head_object", Params=named))
            _curl("-X", "DELETE", client.generate_presigned_url("delete_object", Params=named))
            assert _curl_status(client.generate_presigned_url("get_object", Params=named)) == "404"
            forged = client.generate_presigned_url("get_object", Params=named).replace("signed", "forged")
            assert _curl_status(forged) == "403"
            # botocore refuses a negative lifetime, but awscrt signs one. So make a short lifetime expire.
            expired = client.generate_presigned_url("get_object", Params=named, ExpiresIn=1)
            time.sleep(_EXPIRED_S)
            assert _curl_status(expired) in ("400", "403"), expired

    def try_download_of_a_changing_object(self, scratch: str) -> None:
        """a ranged download with If-Match: the parts of a replaced object are refused with 412"""
        named = {"Bucket": self._where.bucket, "Key": "changing"}
        old, new = (bytes([of]) * (12 << 20) for of in (1, 2))
        self._client.put_object(**named, Body=old)
        etag = self._client.get_object(**named, Range="bytes=0-8388607")["ETag"]
        self._client.put_object(**named, Body=new)
        with pytest.raises(ClientError, match=r"412|PreconditionFailed"):
            self._client.get_object(**named, Range="bytes=8388608-", IfMatch=etag)
        path = Path(scratch) / "down"
        self._client.download_file(*named.values(), str(path))
        assert path.read_bytes() == new

    def try_multipart_resumed(self, scratch: str) -> None:
        """a multipart upload begun, interrupted, continued by list_parts; another one aborted"""
        named = {"Bucket": self._where.bucket, "Key": "parts/ü a&b"}
        parts = [random.Random(at).randbytes(size) for at, size in enumerate((5 << 20, 5 << 20, 77))]
        upload = self._client.create_multipart_upload(**named)["UploadId"]
        self._client.upload_part(**named, UploadId=upload, PartNumber=1, Body=parts[0])
        known = self._client.list_multipart_uploads(Bucket=self._where.bucket)["Uploads"]
        assert [(one["Key"], one["UploadId"]) for one in known] == [(named["Key"], upload)]
        there = self._client.list_parts(**named, UploadId=upload)["Parts"]
        assert [one["PartNumber"] for one in there] == [1]
        for number in (2, 3):
            self._client.upload_part(**named, UploadId=upload, PartNumber=number, Body=parts[number - 1])
        there = self._client.list_parts(**named, UploadId=upload)["Parts"]
        done = [{"PartNumber": one["PartNumber"], "ETag": one["ETag"]} for one in there]
        self._client.complete_multipart_upload(**named, UploadId=upload, MultipartUpload={"Parts": done})
        assert self._client.get_object(**named)["Body"].read() == b"".join(parts)
        upload = self._client.create_multipart_upload(**named)["UploadId"]
        self._client.upload_part(**named, UploadId=upload, PartNumber=1, Body=b"never")
        self._client.abort_multipart_upload(**named, UploadId=upload)
        assert not self._client.list_multipart_uploads(Bucket=self._where.bucket).get("Uploads")

    def try_copy(self, scratch: str) -> None:
        """copy_object and a managed copy in parts; the copy is read back"""
        body = random.Random("copy").randbytes(11 << 20)
        source = {"Bucket": self._where.bucket, "Key": "copy source"}
        self._client.put_object(**source, Body=body)
        self._client.copy_object(Bucket=self._where.bucket, Key="copy 1", CopySource=source)
        by_parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
        self._client.copy(source | {"Key": "copy 1"}, self._where.bucket, "copy-2", Config=by_parts)
        for key in ("copy 1", "copy-2"):
            assert self._client.get_object(Bucket=self._where.bucket, Key=key)["Body"].read() == body, key

    def try_virtual_host_style(self, scratch: str) -> None:
        """bucket.domain instead of domain/bucket: put, head, get, ranged get, list, presigned GET, delete"""
        resolve = socket.getaddrinfo

        def to_loopback(host: Any, *arguments: Any, **named: Any) -> Any:
            ours = isinstance(host, str) and host.endswith(DOMAIN)
            return resolve("127.0.0.1" if ours else host, *arguments, **named)

        socket.getaddrinfo = to_loopback  # type: ignore[assignment]
        try:
            self._in_virtual_host_style(Path(scratch))
        finally:
            socket.getaddrinfo = resolve

    def _in_virtual_host_style(self, scratch: Path) -> None:
        scheme, _, host = self._where.endpoint.partition("://")
        port = host.partition(":")[2]
        for signature in ("s3v4", "s3"):
            client = boto3.client(
                "s3",
                endpoint_url=f"{scheme}://{DOMAIN}:{port}",
                config=Config(s3={"addressing_style": "virtual"}, signature_version=signature),
            )
            named = {"Bucket": self._where.bucket, "Key": "virtual/ü a&b"}
            body = random.Random("virtual").randbytes(6 << 20)
            client.put_object(**named, Body=body)
            assert client.head_object(**named)["ContentLength"] == len(body)
            for _ in ("cold", "warm"):
                assert client.get_object(**named)["Body"].read() == body
            assert client.get_object(**named, Range="bytes=5-9")["Body"].read() == body[5:10]
            listed = client.list_objects_v2(Bucket=self._where.bucket, Prefix="virtual/")["Contents"]
            assert [one["Key"] for one in listed] == [named["Key"]]
            url = client.generate_presigned_url("get_object", Params=named)
            assert f"{self._where.bucket}.{DOMAIN}" in url, url
            down = scratch / "down"
            _curl("--resolve", f"{self._where.bucket}.{DOMAIN}:{port}:127.0.0.1", "-o", str(down), url)
            assert hashlib.sha256(down.read_bytes()).digest() == hashlib.sha256(body).digest()
            client.delete_object(**named)
            assert "Contents" not in client.list_objects_v2(Bucket=self._where.bucket, Prefix="virtual/")


def _curl(*arguments: str) -> None:
    done = subprocess.run(
        ["curl", "-sS", "--fail", *arguments], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, f"curl {' '.join(arguments)}: {done.stderr}"


def _curl_status(url: str) -> str:
    done = subprocess.run(
        ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout
