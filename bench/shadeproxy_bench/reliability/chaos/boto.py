"""Operations of unmodified boto3: GET, HEAD, listings, PutObject, CopyObject and multipart uploads, with
boto3's own retries.

boto3 itself checks the CRC-32 that the origin gives for whole objects. Some objects belong to boto3: no other
client writes them.
"""

import importlib
import random
from collections.abc import Callable
from typing import Any

from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from shadeproxy_bench.reliability.chaos.data import ChaosData
from shadeproxy_bench.reliability.chaos.session import RETRIED_CODES
from shadeproxy_bench.reliability.kit.bodies import BUCKET, LARGEST_BYTES, PAGE_BYTES
from shadeproxy_bench.reliability.kit.tally import FAULTS, Tally
from shadeproxy_bench.reliability.kit.versions import Versions
from shadeproxy_bench.reliability.soak.session import Wrong
from shadeproxy_bench.requests import CLIENT, REGION

_READ = (4096, 100_000, 100_000, 100_000, 1_000_000, PAGE_BYTES, PAGE_BYTES + 1, LARGEST_BYTES)
_WRITTEN = (1, 4096, 100_000, 100_000, 1_000_000, PAGE_BYTES + 1, 2 * PAGE_BYTES + 1)
_PART_BYTES = 5 * 1024 * 1024
_ATTEMPTS = 5
_BROKEN = (
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
)


class Stock:
    """Runs operations with a boto3 client that only one thread uses. ``choices``: the random numbers by which
    this thread chooses operations and objects.
    """

    def __init__(
        self, endpoint_url: str, *, data: ChaosData, versions: Versions, tally: Tally, choices: random.Random
    ) -> None:
        self._data, self._versions, self._tally, self._random = data, versions, tally, choices
        config = importlib.import_module("botocore.config").Config(
            s3={"addressing_style": "path"},
            retries={"mode": "standard", "max_attempts": _ATTEMPTS},
            connect_timeout=5,
            read_timeout=30,
        )
        self._client = importlib.import_module("boto3").client(
            "s3",
            endpoint_url=endpoint_url,
            region_name=REGION,
            aws_access_key_id=CLIENT.access_key,
            aws_secret_access_key=CLIENT.secret_key,
            config=config,
        )

    def read(self) -> None:
        """Make one read: a whole object, a range, a HEAD or a listing, drawn at random."""
        form = self._random.choice((self._get, self._get, self._get, self._part, self._head, self._list))
        form()

    def change(self) -> None:
        """Write an object, or copy one onto itself."""
        form = self._random.choice((self._write, self._write, self._copy))
        form()

    def _write(self) -> None:
        """Write the next version of one of boto3's objects. If that succeeds, read the object back at
        once.
        """
        number = self._data.ranges[4096][0]
        while not self._data.is_of_boto(number):
            number = self._random.choice(self._data.ranges[self._random.choice(_WRITTEN)])
        version = self._versions.start(number)
        body = bytes(self._data.body(number, version))
        put = self._upload if len(body) > PAGE_BYTES else self._put
        if self._asked(put.__name__.removeprefix("_"), lambda: put(number, version, body)):
            self._versions.acknowledge(number, version)
            self._get(number)

    def _copy(self) -> None:
        """Copy an object onto itself, as S3 clients do to change its header fields."""
        key = self._key(self._random.choice(self._data.ranges[100_000]))
        source = {"Bucket": BUCKET, "Key": key}

        def ask() -> int:
            answer = self._client.copy_object(
                Bucket=BUCKET, Key=key, CopySource=source, MetadataDirective="REPLACE"
            )
            return _right(answer["CopyObjectResult"]["ETag"], "no ETag")

        self._asked("copy", ask)

    def _put(self, number: int, version: int, body: bytes) -> int:
        answer = self._client.put_object(
            Bucket=BUCKET, Key=self._key(number), Body=body, Metadata={"version": str(version)}
        )
        return _right(answer["ETag"] == self._data.tag(number, version), answer["ETag"])

    def _upload(self, number: int, version: int, body: bytes) -> int:
        where = {"Bucket": BUCKET, "Key": self._key(number)}
        made = self._client.create_multipart_upload(**where, Metadata={"version": str(version)})
        where["UploadId"] = made["UploadId"]
        parts = []
        for turn, start in enumerate(range(0, len(body), _PART_BYTES), 1):
            part = body[start : start + _PART_BYTES]
            answer = self._client.upload_part(**where, PartNumber=turn, Body=part)
            parts.append({"PartNumber": turn, "ETag": answer["ETag"]})
        done = self._client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
        return _right(done["ETag"] == self._data.tag(number, version), done["ETag"])

    def _get(self, number: int | None = None) -> None:
        chosen = self._pick() if number is None else number
        self._asked("get", lambda: self._compared(chosen, 0, self._data.sizes[chosen]))

    def _part(self) -> None:
        number = self._pick()
        start = self._random.randrange(self._data.sizes[number])
        stop = min(start + 200_000, self._data.sizes[number])
        field = f"bytes={start}-{stop - 1}"
        self._asked("range", lambda: self._compared(number, start, stop, Range=field))

    def _compared(self, number: int, start: int, stop: int, **more: str) -> int:
        """Read a range of an object, and compare it with the versions that may be read. Return the number of
        bytes compared. Raises Wrong.
        """
        before = self._versions.acknowledged(number)
        answer = self._client.get_object(Bucket=BUCKET, Key=self._key(number), **more)
        body = answer["Body"].read()
        version = self._data.version_of(number, answer["ETag"])
        newest = self._versions.started(number)
        if version is None or not before <= version <= newest:
            raise Wrong(f"ETag {answer['ETag']} is not of a version {before} .. {newest}")
        _right(body == self._data.body(number, version)[start:stop], f"{len(body)} bytes for {start}-{stop}")
        return len(body)

    def _head(self) -> None:
        number = self._pick()

        def ask() -> int:
            before = self._versions.acknowledged(number)
            answer = self._client.head_object(Bucket=BUCKET, Key=self._key(number))
            version = self._data.version_of(number, answer["ETag"])
            known = version is not None and before <= version <= self._versions.started(number)
            length = answer["ContentLength"]
            return _right(known and length == self._data.sizes[number], f"{answer['ETag']}, {length} bytes")

        self._asked("head", ask)

    def _list(self) -> None:
        numbers = self._data.ranges[100_000]

        def ask() -> int:
            answer = self._client.list_objects_v2(Bucket=BUCKET, Prefix="100000/")
            found = [entry["Key"] for entry in answer.get("Contents", ())]
            right = found == [self._key(number) for number in numbers][:1000]
            return _right(right, f"{len(found)} of {len(numbers)} keys: {str(answer)[:300]}")

        self._asked("list", ask)

    def _asked(self, kind: str, ask: Callable[[], int]) -> bool:
        """Send a request, and count its outcome. Return whether it succeeded with a right answer. ``ask``
        sends the request and returns the number of bytes compared.
        """
        kind = f"boto3 {kind}"
        try:
            count = ask()
        except (FlexibleChecksumError, Wrong) as error:
            self._failed(kind, "wrong", error)
        except ReadTimeoutError as error:
            self._failed(kind, "hang", error)
        except ClientError as error:
            self._failed(kind, _refused(error), error)
        except _BROKEN as error:
            self._failed(kind, "cut", error)
        else:
            self._tally.answered(kind, count)
            return True
        return False

    def _failed(self, kind: str, outcome: str, error: Exception) -> None:
        self._tally.failed(kind, outcome, str(error) if outcome in FAULTS else "")

    def _pick(self) -> int:
        return self._random.choice(self._data.ranges[self._random.choice(_READ)])

    def _key(self, number: int) -> str:
        return self._data.keys[number]


def _right(is_right: bool, found: str) -> int:
    """Raise Wrong unless ``is_right``. Otherwise return 0: this answer has no bytes to compare."""
    if not is_right:
        raise Wrong(found)
    return 0


def _refused(error: Any) -> str:
    code, status = error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
    if code in RETRIED_CODES or (status >= 500 and code == str(status)):
        return f"{status} {code} after {_ATTEMPTS} attempts"
    return "error"
