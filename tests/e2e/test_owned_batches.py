"""Batches in a cluster with page ownership: at any proxy, and by the SDK from the owner of each sample."""

import http.client
import json
import os
import random
import signal
import threading

import pytest

import shadeproxy_sdk as shade
from tests.support.frames import parse_frames
from tests.support.served import wait_for

from .owned import KEYS, RULES, cluster, owner_of, sent_bodies, settled

PAGE_BYTES = 64 << 10
LONG_BYTES = 3 * PAGE_BYTES + 1000
CLIENT = """
[[auth.clients]]
access_key = "key"
secret_env = "ORIGIN_SECRET"
buckets = ["data"]
"""


@pytest.fixture
def bodies(bucket_directory):
    """Make objects of all sizes, and a bucket that the proxies must not read. Return the bodies of the
    objects.
    """
    drawn = random.Random(0)
    sizes = {"empty": 0, "page": PAGE_BYTES, "long": LONG_BYTES, "more": 2 * LONG_BYTES}
    found = {key: drawn.randbytes(size) for key, size in sizes.items()}
    (bucket_directory / "closed").mkdir()
    for key, body in found.items():
        (bucket_directory / "data" / key).write_bytes(body)
        (bucket_directory / "closed" / key).write_bytes(body)
    return found | {key: key.encode() * 500 for key in KEYS}


@pytest.fixture
def origin(serve, bodies, bucket_directory, tmp_path):
    for key in KEYS:
        (bucket_directory / "data" / key).write_bytes(bodies[key])
    config = tmp_path / "origin.toml"
    config.write_text(RULES.format(cache="false") + CLIENT)
    environment = {"ORIGIN_SECRET": "secret"}
    return serve(config, environment, origin__kind="file", origin__path=str(bucket_directory))


@pytest.fixture
def page_bytes():
    return PAGE_BYTES


@pytest.fixture
def three(join, bodies, page_bytes):
    proxies = [join(cache__page_size=str(page_bytes)) for _ in range(3)]
    settled(*proxies)
    return proxies


@pytest.fixture
def alone(serve, origin, tmp_path, three):
    """Start a proxy with the same origin that is in no cluster."""
    config = tmp_path / "alone.toml"
    config.write_text(RULES.format(cache="true"))
    return serve(
        config,
        origin__endpoint=origin.s3,
        origin__region="us-east-1",
        prefetch__enabled="false",
        cache__page_size=str(PAGE_BYTES),
    )


def connected(proxy):
    return http.client.HTTPConnection(proxy.control.removeprefix("http://"), timeout=30)


def batch(proxy, **call):
    """Return index, status and body of each item of a batch answer. A refused item has the error code in
    place of the body.
    """
    frames, is_complete = parse_frames(proxy.call("POST", "/v1/batch", call))
    assert is_complete
    return [(f.index, f.status, f.body if f.status == 200 else f.error["code"]) for f in frames]


def item(key, *span, bucket="data"):
    return {"bucket": bucket, "key": key} | dict(zip(("offset", "length"), span, strict=False))


FAR = 10 * LONG_BYTES
SPANS = (
    (), (0, 10), (100,), (0, 0), (7, 1000), (PAGE_BYTES - 5, 10), (FAR, 1), (FAR,), (5, 0),
)  # fmt: skip
ITEMS = [
    *map(item, KEYS),
    *[item(key, *span) for key in ("page", "long", "more", "000", "empty") for span in SPANS],
    item("long", 1, LONG_BYTES - 2),
    item("long", PAGE_BYTES, PAGE_BYTES),
    item("long", 1, PAGE_BYTES + 1),
    *[item(f"missing{n}") for n in range(6)],
    item("missing", 3, 4),
    item("missing", 0, 0),
    *[item(key, bucket="closed") for key in ("empty", "long", "nothing")],
    item("long", 3, 5, bucket="closed"),
    *[item(key, bucket="nowhere") for key in "abc"],
]


@pytest.mark.parametrize("order", ["given", "ready"])
def test_a_batch_at_any_proxy_has_the_bytes_and_statuses_of_one_proxy(three, alone, order):
    """A batch at any proxy of the cluster has the bytes and statuses that a single proxy gives. Each batch is
    read twice, and first from empty caches.
    """
    for _ in range(2):
        wanted = batch(alone, items=ITEMS, order=order)
        assert {status for _, status, _ in wanted} == {200, 403, 404, 416}
        for proxy in three:
            found = batch(proxy, items=ITEMS, order=order)
            if order == "given":
                assert [index for index, *_ in found] == list(range(len(ITEMS)))
            assert sorted(found) == sorted(wanted)


def test_a_batch_reads_each_object_from_the_origin_once(three, origin):
    items = [item(key) for key in KEYS]
    for proxy in three * 2:
        assert [body for _, _, body in batch(proxy, items=items)] == [key.encode() * 500 for key in KEYS]
    assert sent_bodies(origin) == len(KEYS)


def big_objects(directory, count=48):
    """Make objects of almost a page of 1 MiB. They do not fit into socket buffers, so many are on their way
    at the same time.
    """
    drawn = random.Random(1)
    bodies = {f"big/{n:03d}": drawn.randbytes((1 << 20) - n) for n in range(count)}
    (directory / "data" / "big").mkdir()
    for key, body in bodies.items():
        (directory / "data" / key).write_bytes(body)
    return bodies


@pytest.mark.parametrize("page_bytes", [1 << 20])
@pytest.mark.parametrize("order", ["given", "ready"])
def test_an_owner_that_is_killed_during_a_batch_costs_no_item(three, bucket_directory, order):
    bodies = big_objects(bucket_directory)
    keys = list(bodies) * 4
    a, _, c = three
    assert any(owner_of(key, three) is c for key in bodies)
    for _ in range(2):
        batch(a, items=[item(key) for key in bodies])
    call = json.dumps({"items": [item(key) for key in keys], "order": order})
    connection = connected(a)
    connection.request("POST", "/v1/batch", call, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    first = answer.read(1 << 16)
    # The answer waits for its reader now. Some of the next bodies have been received only in part.
    c.process.send_signal(signal.SIGSTOP)
    first += answer.read(1 << 21)
    c.stop(signal.SIGKILL)
    frames, is_complete = parse_frames(first + answer.read())
    connection.close()
    assert is_complete
    assert {(f.index, f.status) for f in frames} == {(n, 200) for n in range(len(keys))}
    assert all(f.body == bodies[keys[f.index]] for f in frames)


@pytest.mark.parametrize("page_bytes", [1 << 20])
def test_a_caller_that_leaves_ends_its_reads_at_all_proxies(three, bucket_directory):
    bodies = big_objects(bucket_directory)
    call = json.dumps({"items": [item(key) for key in list(bodies) * 8]})
    for _ in range(3):
        connection = connected(three[0])
        connection.request("POST", "/v1/batch", call, {"Content-Type": "application/json"})
        connection.getresponse().read(1 << 16)
        connection.close()
    for proxy in three:
        wait_for(lambda proxy=proxy: proxy.stats()["gauges"]["inflight_bytes"] == 0)
    found = batch(three[0], items=[item(key) for key in bodies])
    assert [body for _, _, body in found] == list(bodies.values())


@pytest.fixture
def client(three):
    client = shade.Client(three[0].control, origin=None, timeout_s=20.0)
    yield client
    client.close()


@pytest.fixture
def manifest(client, three):
    manifest = client.manifest(bucket="data")
    wait_for(lambda: all(one.get("/v1/datasets")["datasets"] for one in three))
    return manifest


def relayed(proxy):
    return sum(row["requests"] for row in proxy.stats()["cluster"]["relayed"])


def test_the_sdk_reads_an_epoch_once_from_the_owners(three, client, manifest, bodies, origin):
    ids = list(range(len(manifest)))
    random.Random(2).shuffle(ids)
    sent = sent_bodies(origin)
    for start in range(0, len(ids), 16):
        part = ids[start : start + 16]
        found = client.read_many(manifest, part)
        assert found == [bodies[manifest[number].key] for number in part]
    pages = {"empty": 1, "long": 4, "more": 7}
    # An object that was fetched ahead may turn out to be too long for that. It is then opened a second time
    # in its turn.
    assert sent_bodies(origin) - sent <= sum(pages.get(key, 1) for key in bodies) + 2
    reads = [one.stats()["totals"]["requests"] for one in three]
    shares = [sum(owner_of(manifest[i].key, three) is one for i in ids) for one in three]
    assert reads == shares
    assert [relayed(one) for one in three] == [0, 0, 0]
    assert client.connections.owners.failures == 0


def test_the_loader_of_the_sdk_reads_an_epoch_exactly_once(three, client, manifest, bodies):
    data = shade.S3Dataset(client, manifest=manifest)
    seen = []
    from torch.utils.data import DataLoader

    for values in DataLoader(data, batch_size=8, shuffle=True, num_workers=2, collate_fn=list):
        for body, number in values:
            assert bytes(body) == bodies[manifest[number].key]
            seen.append(number)
    assert sorted(seen) == list(range(len(manifest)))
    assert [relayed(one) for one in three] == [0, 0, 0]


def test_the_sdk_reads_on_while_an_owner_is_killed_and_comes_back(three, client, manifest, bodies):
    *_, c = three
    ids = list(range(len(manifest)))
    rounds = 0
    done = threading.Event()
    wrong = []

    def read():
        nonlocal rounds
        while not done.is_set():
            for number, body in zip(ids, client.read_many(manifest, ids), strict=True):
                if body != bodies[manifest[number].key]:
                    wrong.append(number)
            rounds += 1

    reader = threading.Thread(target=read)
    reader.start()

    def goes_on():
        now = rounds
        wait_for(lambda: rounds > now + 3 or not reader.is_alive())
        assert reader.is_alive()

    try:
        goes_on()
        c.stop(signal.SIGKILL)
        goes_on()
        assert client.connections.owners.failures
        c.start()
        settled(*three)
        goes_on()
    finally:
        done.set()
        reader.join()
    assert wrong == []
    wait_for(lambda: _is_asked(c, client, manifest, ids))


def _is_asked(proxy, client, manifest, ids):
    """Return whether the SDK asks this proxy for samples that the proxy owns."""
    before = proxy.stats()["totals"]["requests"]
    client.read_many(manifest, ids)
    return proxy.stats()["totals"]["requests"] > before and cluster(proxy)["lease_s"] > 0


def test_items_that_cannot_be_read_by_the_sdk_raise_the_error_of_a_get(three, client):
    entries = [shade.Entry("data", key) for key in [*KEYS, "missing"]]
    manifest = shade.Manifest.from_entries(f"broken-{os.getpid()}", entries)
    client.register(manifest)
    with pytest.raises(shade.ReadError, match="404"):
        client.read_many(manifest, list(range(len(entries))))
