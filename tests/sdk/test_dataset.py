import copy
import functools
import logging
import pickle
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import shadeproxy_sdk as shade

# The workers must check the bytes with a function that a spawned process can import. It cannot import
# functions of this file.
FIRST_BYTE = functools.partial(np.frombuffer, dtype=np.uint8, count=1)


@pytest.fixture
def bodies(proxy):
    return [proxy.objects["train", key] for key in proxy.keys("train", "")]


@pytest.fixture
def data(client):
    return shade.S3Dataset(client, bucket="train")


def test_samples_are_in_key_order_with_their_ids(data, bodies):
    assert len(data) == 40
    assert [data[i] for i in range(40)] == [(body, i) for i, body in enumerate(bodies)]


@pytest.mark.parametrize("index", [-1, 40])
def test_unknown_id_is_an_index_error(data, index):
    with pytest.raises(IndexError, match=f"sample {index} of dataset .* which has 40"):
        data[index]


def test_batch_keeps_order_and_fetches_duplicates_once(data, proxy, bodies):
    assert data.__getitems__([3, 1, 3, 39]) == [(bodies[i], i) for i in (3, 1, 3, 39)]
    assert len(proxy.reads) == 3


@pytest.mark.parametrize(
    ("decode", "expected"),
    [
        (len, (2, 1)),
        (lambda data: (data[:1], len(data)), (b"\3", 2, 1)),
        (lambda data, key: (len(data), int(key[0])), (2, 0, 1)),
        (lambda _, mode="r": mode, ("r", 1)),
        (zlib.crc32, (zlib.crc32(b"\3\3"), 1)),
    ],
)
def test_decode_gets_the_key_only_when_it_requires_it(client, proxy, decode, expected):
    proxy.objects["train", "0/003"] = b"\3\3"
    assert shade.S3Dataset(client, bucket="train", prefix="0/", decode=decode)[1] == expected


def test_decode_that_fails_names_the_object(client):
    data = shade.S3Dataset(client, bucket="train", decode=lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError) as failure:
        data[2]
    assert failure.value.__notes__ == ["while decoding sample 2, s3://train/0/006 (7 bytes)"]


def test_one_missing_object_fails_the_batch(data, proxy):
    del proxy.objects["train", "0/003"]
    with pytest.raises(shade.ReadError, match="s3://train/0/003"):
        data.__getitems__([0, 1, 2])


def test_parts_of_objects(client, proxy):
    proxy.put("train", shard=bytes(range(100)))
    manifest = shade.Manifest.from_entries(
        "parts", [shade.Entry("train", "shard", 10 * i, 10) for i in range(10)]
    )
    data = shade.S3Dataset(client, manifest=manifest)
    assert data.__getitems__([9, 0]) == [(bytes(range(90, 100)), 9), (bytes(range(10)), 0)]
    client.job("parts", dataset=manifest).close()
    assert proxy.digest("parts") == manifest.digest


def epoch_of(fake):
    """Return (key, value of x-shade-job) of each read that the fake server got."""
    return {(key, headers.get("x-shade-job")) for _, key, headers in fake.reads}


# The threads of the fake proxy run in this process. From Python 3.12 on, a fork in a process with threads
# gives a warning.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_whole_batches_under_the_jobs_epoch(client, proxy, method):
    data = shade.S3Dataset(client, bucket="train", decode=FIRST_BYTE)
    data.__getitems__(range(16))  # This read opens connections and starts threads before the workers start.
    job = client.job("run", dataset=data.manifest, interval_s=3600.0)
    sampler = shade.ShadeSampler(job, batch_size=8)
    loader = DataLoader(
        data,
        batch_size=8,
        sampler=sampler,
        num_workers=1 if method == "spawn" else 2,  # Each spawned worker must import torch, so use only one.
        collate_fn=shade.collate,
        multiprocessing_context=method,
        persistent_workers=True,
        timeout=120,
    )
    keys = proxy.keys("train", "")
    for epoch in range(2):
        proxy.reads.clear()
        sampler.set_epoch(epoch)
        seen = []
        for x, ids in loader:
            assert x[:, 0].tolist() == [int(keys[i].partition("/")[2]) for i in ids.tolist()]
            seen += ids.tolist()
        assert seen == sampler.order(epoch).tolist()
        assert epoch_of(proxy) == {(key, f"run;epoch={epoch};rank=0") for key in keys}
    loader._iterator._shutdown_workers()
    job.close()


def test_proxy_that_dies_mid_epoch_does_not_stop_training(client, proxy, origin, bodies, caplog):
    data = shade.S3Dataset(client, bucket="train")
    job = client.job("run", dataset=data.manifest, interval_s=3600.0)
    sampler = shade.ShadeSampler(job, batch_size=4)
    loader = DataLoader(data, batch_size=4, sampler=sampler, collate_fn=list)
    proxy.die_after = 18
    seen = []
    for step, batch in enumerate(job.timed(loader)):
        if step == 4:
            proxy.die()
        assert [data for data, _ in batch] == [bodies[i] for _, i in batch]
        seen += [i for _, i in batch]
        job.report([i for _, i in batch], np.arange(4.0))
    assert sorted(seen) == list(range(40))
    assert len(origin.reads) == 40 - 18
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert not job.close(timeout_s=2.0)


def test_training_without_any_proxy(make_client, origin, caplog):
    client = make_client("http://127.0.0.1:9", origin=shade.Origin(origin.url))
    data = shade.S3Dataset(client, bucket="train", decode=FIRST_BYTE)
    job = client.job("run", dataset=data.manifest, interval_s=3600.0)
    sampler = shade.ShadeSampler(job, mode="importance", batch_size=8)
    loader = DataLoader(data, batch_size=8, sampler=sampler, collate_fn=shade.collate)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, ids in loader:
            job.report(ids, x[:, 0].float())
    assert (sampler.weight_of(torch.arange(40)) != 1).any()
    assert job.stats().unsent == 40
    assert not job.close(timeout_s=2.0)
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


@pytest.fixture
def client_of(make_client, origin):
    return lambda url: make_client(url, origin=shade.Origin(origin.url))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize(("how", "epochs"), [("absent", 2), ("fork", 2), ("spawn", 1)])
def test_whoever_finds_out_says_it_once_for_all_workers(client_of, proxy, capfd, how, epochs):
    absent = how == "absent"
    client = client_of("http://127.0.0.1:9" if absent else proxy.url)
    data = shade.S3Dataset(client, bucket="train", decode=FIRST_BYTE)
    if not absent:
        proxy.die()
    # Forked processes inherit this handler. A spawned process has no such handler, and its logger writes to
    # stderr by itself.
    handler = logging.FileHandler("/dev/stderr")
    logging.getLogger("shadeproxy_sdk").addHandler(handler)
    if absent:
        client.job("run", dataset=data.manifest).close(timeout_s=0.1)
    method = "fork" if absent else how
    try:
        loader = DataLoader(
            data, 4, num_workers=2, collate_fn=shade.collate, multiprocessing_context=method, timeout=60
        )
        for _ in range(epochs):
            assert sum(len(ids) for _, ids in loader) == 40
    finally:
        logging.getLogger("shadeproxy_sdk").removeHandler(handler)
        handler.close()
    # If the proxy is absent, the listing has already warned before the handler was added.
    assert capfd.readouterr().err.count("does not answer") == (0 if absent else 1)


def test_dataset_survives_a_plain_pickle(data, client):
    client.job("run", dataset=data.manifest).begin(3)
    copy = pickle.loads(pickle.dumps(data))
    assert copy[5] == data[5]
    assert copy.manifest.tag.headers() == {"x-shade-job": "run;epoch=3;rank=0"}
    copy._client.close()


def test_a_deep_copy_of_a_dataset_reads_under_the_jobs_epoch(client, data, proxy):
    job = client.job("run", dataset=data.manifest, interval_s=3600.0)
    copied = copy.deepcopy(data)
    job.begin(7)
    assert copied[0] == data[0]
    job.close()
    assert [headers["x-shade-job"] for _, _, headers in proxy.reads] == ["run;epoch=7;rank=0"] * 2


def test_collate_batches_values_and_ids():
    x, y, ids = shade.collate([(torch.ones(2), 1, 7), (torch.zeros(2), 0, 9)])
    assert x.tolist() == [[1, 1], [0, 0]]
    assert y.tolist() == [1, 0]
    assert (ids.tolist(), ids.dtype) == ([7, 9], torch.int64)


def test_importing_the_sdk_does_not_import_torch_or_the_proxy():
    program = (
        "import sys, shadeproxy_sdk as shade; shade.Client, shade.Origin, shade.Job;"
        "assert not {'torch', 'shadeproxy', 'botocore'} & set(sys.modules);"
        "shade.S3Dataset, shade.ShadeSampler, shade.collate; assert 'torch' in sys.modules;"
        "assert callable(shade.collate); assert not hasattr(shade, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
