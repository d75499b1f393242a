"""Uploads and other forwarded requests through workers: real clients, races, and killed workers."""

import os
import signal
import time
from collections import Counter
from contextlib import closing
from http.client import HTTPConnection

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore import UNSIGNED
from botocore.config import Config

from tests.support.certificate import write_certificate
from tests.support.overwriting import KEYS, Load, ask, body_of, get, put
from tests.support.served import log_of, wait_for
from tests.support.workers import wait_for_workers, worker_pids

MIB = 1 << 20
FORWARDED = {
    "PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "CopyObject",
    "DeleteObject", "DeleteObjects", "ListObjectsV2",
}  # fmt: skip


@pytest.fixture
def proxy(serve, bucket_directory):
    """Return a function ``start(count, **settings)``. It runs a proxy of several processes in front of an S3
    server.
    """
    origin = serve(origin__kind="file", origin__path=str(bucket_directory))

    def start(count: int = 3, **settings: str):
        served = serve(
            origin__endpoint=origin.s3,
            origin__credentials__source="anonymous",
            s3__workers=str(count),
            **settings,
        )
        wait_for_workers(served)
        return served

    start.origin = origin
    return start


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_boto3_writes_and_reads_through_workers_alone(proxy, bucket_directory, tmp_path, secure):
    settings, options = {"telemetry__log_level": "debug"}, {}
    if secure:
        certificate = write_certificate(tmp_path)
        settings |= {"s3__tls__cert": str(certificate.cert), "s3__tls__key": str(certificate.key)}
        options["verify"] = str(certificate.authority)
    served = proxy(3, **settings)
    client = boto3.client(
        "s3",
        endpoint_url=served.s3,
        region_name="us-east-1",
        config=Config(signature_version=UNSIGNED),
        **options,
    )
    small, big = os.urandom(100_000), os.urandom(20 * MIB)
    client.put_object(Bucket="data", Key="small", Body=small, Metadata={"a": "b"})
    (tmp_path / "big").write_bytes(big)
    client.upload_file(
        str(tmp_path / "big"), "data", "big", Config=TransferConfig(MIB, multipart_chunksize=8 * MIB)
    )
    client.copy_object(Bucket="data", Key="copy", CopySource={"Bucket": "data", "Key": "small"})
    for name, body in (("small", small), ("big", big), ("copy", small)):
        assert (bucket_directory / "data" / name).read_bytes() == body
        for _ in range(2):
            assert client.get_object(Bucket="data", Key=name)["Body"].read() == body
    client.put_object(Bucket="data", Key="small", Body=b"new")
    assert client.get_object(Bucket="data", Key="small")["Body"].read() == b"new"
    client.delete_object(Bucket="data", Key="copy")
    client.delete_objects(Bucket="data", Delete={"Objects": [{"Key": "small"}]})
    listed = client.list_objects_v2(Bucket="data")["Contents"]
    assert [one["Key"] for one in listed] == ["big"]
    with pytest.raises(client.exceptions.NoSuchKey):
        client.get_object(Bucket="data", Key="small")
    wait_for(lambda: {line["operation"] for line in log_of(served, "s3_request")} >= FORWARDED)
    who = Counter(
        line.get("worker") in worker_pids(served)
        for line in log_of(served, "s3_request")
        if line["operation"] in FORWARDED
    )
    assert who[False] == 0, who
    assert served.stats()["origin"]["by_kind"]["forward"]["requests"] == who[True]


@pytest.mark.parametrize("count", [2, 3])
def test_no_process_answers_with_a_body_that_was_overwritten_before(proxy, count):
    served = proxy(count, cache__ram__capacity="1 MiB", cache__inflight="64 MiB")
    load = Load(served)

    def hits():
        return {who for source, who in list(load.read) if source in {"ram", "disk"}}

    time.sleep(5)
    wait_for(lambda: len(hits()) > 1 and sum(load.versions.values()) > 3 * KEYS, 60)
    load.end()
    assert not load.failures


def half_sent(served, path: str, body: bytes) -> HTTPConnection:
    """Return a worker's connection over which half of an upload was sent. The upload overwrites a cached
    object.
    """
    connection = HTTPConnection(served.s3.removeprefix("http://"), timeout=20)
    served.process.send_signal(signal.SIGSTOP)
    assert get(connection, path)[0] == 200, "only the worker can answer"
    served.process.send_signal(signal.SIGCONT)
    connection.putrequest("PUT", path)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[: len(body) // 2])
    return connection


def test_a_worker_killed_in_an_upload_leaves_nothing_stale_and_no_slot_taken(proxy):
    served = proxy(2, origin__max_connections="1")
    for key in ("0", "1", "2"):
        path, old, new = f"/data/{key}", body_of(key, 1), body_of(key, 2)
        put(served, path, old)
        assert ask(served, path)[2] == old
        # A page is stored some turns of the event loop after the read. Only then can a worker answer the read
        # alone.
        wait_for(lambda: ask(served, path)[1]["x-shade-cache"] == "ram")  # noqa: B023 - called here
        pages = served.stats()["tiers"]["ram"]["pages"]
        with closing(half_sent(served, path, new)):
            wait_for(lambda: served.stats()["tiers"]["ram"]["pages"] < pages)  # noqa: B023 - called here
            (worker,) = worker_pids(served)
            os.kill(worker, signal.SIGKILL)
        for _ in range(2):
            status, headers, body = ask(served, path)
            assert (status, body, headers["x-shade-cache"]) == (200, old, "origin")
        # Write directly to the origin, as if it had carried out the broken upload after all. The next read
        # needs the only connection to the origin, so this connection must be free.
        put(proxy.origin, path, new)
        assert ask(served, path)[2] == new
        put(served, path, old)
        assert ask(served, path)[2] == old
        wait_for_workers(served)
    assert served.stop() == 0
