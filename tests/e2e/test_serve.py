"""The product as users start it: as a process, with boto3 and curl as clients."""

import signal
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import urllib3
from botocore.exceptions import ClientError

from tests.support.served import wait_for

SIZE = 20_000
COUNT = 400
FIFTH_BYTES = COUNT // 5 * 100_500
"""The room for a fifth of COUNT objects of 100,000 bytes, which are a little longer in a tier."""


def fill(directory: Path, count: int, size: int = SIZE) -> list[str]:
    keys = [f"{n:05d}" for n in range(count)]
    for n, key in enumerate(keys):
        (directory / "data" / key).write_bytes(n.to_bytes(4, "little") * (size // 4))
    return keys


def read(client, key: str, bucket: str = "data", **kwargs) -> tuple[bytes, str]:
    answer = client.get_object(Bucket=bucket, Key=key, **kwargs)
    return answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"]["x-shade-cache"]


@pytest.mark.new_interpreter
def test_the_life_of_an_object(serve, bucket_directory):
    client = serve(origin__kind="file", origin__path=str(bucket_directory)).client()
    client.put_object(Bucket="data", Key="a/b.bin", Body=b"one" * 1000)
    assert [o["Key"] for o in client.list_objects_v2(Bucket="data")["Contents"]] == ["a/b.bin"]
    assert read(client, "a/b.bin") == (b"one" * 1000, "origin")
    assert read(client, "a/b.bin") == (b"one" * 1000, "ram")
    assert read(client, "a/b.bin", Range="bytes=3-8") == (b"oneone", "ram")
    assert client.head_object(Bucket="data", Key="a/b.bin")["ContentLength"] == 3000
    client.put_object(Bucket="data", Key="a/b.bin", Body=b"two")
    assert read(client, "a/b.bin") == (b"two", "origin")
    client.delete_object(Bucket="data", Key="a/b.bin")
    with pytest.raises(ClientError, match="NoSuchKey"):
        read(client, "a/b.bin")


def test_three_shuffled_epochs_of_a_stock_client_hit_the_cached_fraction(serve, bucket_directory):
    """Three shuffled epochs of a client without the SDK hit the cached fraction, which is the optimum. The
    cache has room for 20 % of 400 objects.
    """
    keys = fill(bucket_directory, COUNT, 100_000)
    proxy = serve(
        origin__kind="file",
        origin__path=str(bucket_directory),
        cache__ram__capacity=str(FIFTH_BYTES),
    )
    ratios = shuffled_epochs(proxy, keys)
    assert min(ratios[1:]) >= 0.99 * 0.2
    assert max(ratios) <= 0.201


def test_the_same_with_lru_hits_about_two_percent(serve, bucket_directory):
    keys = fill(bucket_directory, COUNT, 100_000)
    proxy = serve(
        origin__kind="file",
        origin__path=str(bucket_directory),
        cache__ram__capacity=str(FIFTH_BYTES),
        policy__name="lru",
    )
    assert np.mean(shuffled_epochs(proxy, keys)[1:]) == pytest.approx(0.0215, abs=0.01)


def shuffled_epochs(proxy, keys: list[str]) -> list[float]:
    pool, rng, ratios = urllib3.PoolManager(), np.random.default_rng(5), []
    for _ in range(3):
        before = proxy.stats()["totals"]
        for n in rng.permutation(len(keys)).tolist():
            body = pool.request("GET", f"{proxy.s3}/data/{keys[n]}").data
            assert body[:4] == n.to_bytes(4, "little")
        after = proxy.stats()["totals"]
        hits = sum(after[tier] - before[tier] for tier in ("hits_ram", "hits_disk"))
        ratios.append(hits / (after["requests"] - before["requests"]))
    return ratios


@pytest.mark.new_interpreter
def test_scores_posted_by_curl_change_what_is_evicted(serve, bucket_directory):
    keys = fill(bucket_directory, 100)
    proxy = serve(
        origin__kind="file", origin__path=str(bucket_directory), cache__ram__capacity=str(20 * (SIZE + 512))
    )
    client = proxy.client()
    for key in keys:
        read(client, key)
    call(proxy, "PUT", "/v1/datasets/d", b'{"bucket": "data", "prefix": ""}')
    call(proxy, "PUT", "/v1/jobs/j", b'{"dataset": "d"}')
    wanted = range(70, 85)
    scores = ",".join("9" if n in wanted else "0.5" for n in range(100))
    ids = ",".join(map(str, range(100)))
    call(proxy, "POST", "/v1/jobs/j/scores", f'{{"ids": [{ids}], "scores": [{scores}]}}'.encode())
    for key in keys:
        read(client, key)
    assert [read(client, keys[n])[1] for n in wanted] == ["ram"] * len(wanted)


def test_scores_survive_a_restart(serve, bucket_directory):
    fill(bucket_directory, 3)
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory))
    call(proxy, "PUT", "/v1/datasets/d", b'{"bucket": "data", "prefix": ""}')
    call(proxy, "PUT", "/v1/jobs/j", b'{"dataset": "d"}')
    call(proxy, "POST", "/v1/jobs/j/scores", b'{"keys": {"data/00001": 0.75}}')
    before = call(proxy, "GET", "/v1/jobs/j/scores")
    assert proxy.stop() == 0
    proxy.start()
    assert call(proxy, "GET", "/v1/jobs/j/scores") == before
    assert np.frombuffer(before, "<f4")[1] == 0.75


@pytest.mark.new_interpreter
def test_sigterm_finishes_what_is_under_way_and_pages_survive(serve, bucket_directory):
    keys = fill(bucket_directory, 50)
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory), cache__disk__capacity="1 MiB")
    for key in keys:
        read(proxy.client(), key)
    assert proxy.stop() == 0
    assert b'"stopped"' in proxy.log.read_bytes().splitlines()[-1]
    proxy.start_whole()
    assert {read(proxy.client(), key)[1] for key in keys} <= {"ram", "disk"}


def test_a_request_under_way_is_finished_at_sigterm(serve, bucket_directory):
    fill(bucket_directory, 1)
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory), origin__delay="700 ms")
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(read, proxy.client(), "00000")
        wait_for(lambda: proxy.stats()["gauges"]["readings"])
        assert proxy.stop() == 0
        assert answer.result()[0] == bytes(SIZE)


def test_wrong_secret_and_unknown_key_are_refused(serve, bucket_directory, tmp_path):
    fill(bucket_directory, 1)
    config = tmp_path / "auth.toml"
    config.write_text(
        """
        [auth]
        anonymous = false
        [[auth.clients]]
        access_key = "trainer"
        secret_env = "TRAINER_SECRET"
        [[auth.clients]]
        access_key = "reader"
        secret_env = "TRAINER_SECRET"
        buckets = ["da*"]
        allow = ["read"]
        """
    )
    proxy = serve(
        config, {"TRAINER_SECRET": "right"}, origin__kind="file", origin__path=str(bucket_directory)
    )

    def client(key: str, secret: str):
        return proxy.client(aws_access_key_id=key, aws_secret_access_key=secret)

    assert read(client("trainer", "right"), "00000")[1] == "origin"
    assert read(client("reader", "right"), "00000")[1] == "ram"
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        read(client("trainer", "wrong"), "00000")
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        read(client("nobody", "right"), "00000")
    with pytest.raises(ClientError, match="AccessDenied"):
        client("reader", "right").put_object(Bucket="data", Key="x", Body=b"")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{proxy.s3}/data/00000", timeout=5)
    assert b"right" not in proxy.log.read_bytes()


def test_kill_9_during_writes_loses_no_byte_and_keeps_pages(serve, bucket_directory):
    keys = fill(bucket_directory, 120)
    proxy = serve(
        origin__kind="file",
        origin__path=str(bucket_directory),
        cache__ram__capacity="1 MiB",
        cache__disk__capacity="1 MiB",
        policy__name="lru",
    )
    rng = np.random.default_rng(11)
    for _ in range(3):
        client = proxy.client()
        for key in rng.permutation(keys)[:60]:
            read(client, str(key))
        proxy.stop(signal.SIGKILL)
        proxy.start_whole()
        survived = sum(tier["pages"] for tier in proxy.stats()["tiers"].values())
        assert survived >= 40
        client = proxy.client()
        for n, key in enumerate(keys):
            assert read(client, key)[0] == n.to_bytes(4, "little") * (SIZE // 4)


def test_kill_9_after_a_write_never_brings_back_what_was_overwritten(serve, bucket_directory, tmp_path):
    """After kill -9 an overwritten object never comes back. With freshness "immutable" the origin is never
    asked again. So an old page that came back would be served for ever.
    """
    config = tmp_path / "immutable.toml"
    config.write_text('[[rules]]\nfreshness = "immutable"\n')
    keys = fill(bucket_directory, 10)
    proxy = serve(
        config,
        origin__kind="file",
        origin__path=str(bucket_directory),
        cache__ram__capacity="64 KiB",
        cache__disk__capacity="1 MiB",
    )
    for turn in range(5):
        client = proxy.client()
        for key in keys:
            read(client, key)
        on_disk: list[str] = []
        while len(on_disk) < 5:  # A page is stored a moment after the reader has received it, so read again.
            on_disk = [key for key in keys if read(client, key)[1] == "disk"]
        new = bytes([turn]) * 500
        client.put_object(Bucket="data", Key=on_disk[turn], Body=new)
        proxy.stop(signal.SIGKILL)
        proxy.start()
        assert read(proxy.client(), on_disk[turn])[0] == new


def test_a_proxy_in_front_of_a_proxy_tells_of_itself(serve, bucket_directory):
    fill(bucket_directory, 1)
    behind = serve(origin__kind="file", origin__path=str(bucket_directory))
    front = serve(origin__endpoint=behind.s3, origin__credentials="anonymous")
    for expected in ("origin", "ram"):
        assert read(front.client(), "00000") == (bytes(SIZE), expected)
    listed = urllib.request.urlopen(f"{front.s3}/data", timeout=5)
    assert listed.headers.get_all("x-shade-cache") == ["bypass"]


def call(proxy, method: str, path: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(proxy.control + path, data=body, method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read()
