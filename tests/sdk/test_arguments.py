"""Wrong arguments are refused at once. The message says what to change, and shows no secret."""

import numpy as np
import pytest
import torch
from torch.utils.data import SequentialSampler

import shadeproxy_sdk as shade

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "url", ["http://me:hidden@h:9001", "http://me:hidden@h:x", "me:hidden@h", "http://hidden@h"]
)
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (shade.Client, r"write http://host:port, .* alone, and give the token as Client\(token="),
        (lambda url: shade.Client(NOBODY, s3_endpoint=url), r"and give keys as Origin\(access_key="),
        (shade.Origin, r"and give keys as Origin\(access_key="),
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(make, text, url):
    with pytest.raises(shade.ConfigError, match=text) as refused:
        make(url)
    assert "hidden" not in str(refused.value)


def test_a_password_in_the_origins_variable_is_refused_and_not_shown(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://me:hidden@s3.example.org")
    with pytest.raises(shade.ConfigError, match="an S3 endpoint has a user or password") as refused:
        shade.Client(NOBODY)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "url", [None, 9001, b"http://h:1", "http://[", "http://h:x", "http://h:99999", "http://h:0"]
)
@pytest.mark.parametrize("make", [shade.Client, shade.Origin])
def test_what_is_no_address_is_refused(make, url):
    with pytest.raises(shade.ConfigError, match=r"is not a.* write http://host:port"):
        make(url)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{nonsense", "is no object with a key"),
        (b"[1]", "is no object with a key"),
        (b'{"bucket": "b"}', "is no object with a key"),
        (b"\xff", "is no object with a key"),
        (b'{"key": 7}', "give the two names as texts"),
        (b'{"key": "k", "offset": "1", "length": 2}', "give whole numbers"),
        (b'{"key": "k", "offset": 1}', "give both, from 0 on"),
        (b'{"bucket": "a/b", "key": "k"}', "give the two names without s3://"),
    ],
)
def test_a_wrong_line_of_a_manifest_is_named(line, text):
    lines = b'{"key": "a"}\n\n' + line + b'\n{"key": "c"}\n'
    with pytest.raises(shade.ConfigError, match=rf"^line 3 of the manifest 'mine': .*{text}.*; write "):
        shade.Manifest.from_jsonl("mine", lines, bucket="b")


@pytest.mark.parametrize("ids", [[1.5], ["a"], [None], [True], np.array([0.0])])
def test_ids_that_are_no_integers_are_refused(client, manifest, ids):
    for read in (client.read_many, client.fetch):
        with pytest.raises(shade.ConfigError, match=r"sample ids .* give whole numbers from 0 to 39"):
            read(manifest, ids)
    with pytest.raises(shade.ConfigError, match="give whole numbers from 0 to 39"):
        client.read_into(manifest, ids, np.empty((1, 4), np.uint8))
    with pytest.raises(shade.ConfigError, match="give whole numbers from 0 to 39"):
        manifest[ids[0]]


@pytest.mark.parametrize("index", [slice(3), [1, 2], (1, 2)])
def test_an_index_that_names_several_samples_is_refused(client, manifest, index):
    """A loader with ``batch_size=None`` over batches asks for a list of samples."""
    data = shade.S3Dataset(client, manifest=manifest)
    with pytest.raises(shade.ConfigError, match=r"give one sample id, .* batch_sampler=.*several"):
        data[index]


def test_integers_of_numpy_are_ids(client, manifest, proxy):
    ids = np.array([3, 1], np.uint32)
    assert client.read_many(manifest, ids) == client.read_many(manifest, [3, 1])
    assert manifest[ids[0]] == manifest[3]


@pytest.mark.parametrize("ids", [[40], [-1], [0.5], [[0, 1], [2, 40]]])
def test_a_correction_of_ids_that_no_sample_has_is_refused(make_job, ids):
    job = make_job()
    sampler = shade.ShadeSampler(job, "importance")
    job.report(np.arange(40), np.arange(40.0))
    sampler.set_epoch(1)
    with pytest.raises(
        shade.ConfigError, match="give the sample ids that the loader yields, integers from 0 to 39"
    ):
        sampler.weight_of(ids)
    assert sampler.weight_of([]).tolist() == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"world_size": 0}, "world_size 0: give the number of processes that train, at least 1"),
        ({"world_size": "2"}, "world_size '2': give the number"),
        ({"rank": 1.0, "world_size": 2}, "rank 1.0 is not in 0 .. 1"),
        ({"rank": -1}, "rank -1 is not in 0 .. 0"),
        ({"weight": "big"}, "weight 'big': give a number"),
        ({"weight": float("nan")}, "weight nan: give a number"),
        ({"interval_s": 0}, "interval_s 0: give a number of seconds above 0"),
        ({"queue_batches": 0}, "queue_batches 0: give a whole number from 1 on"),
        ({"dataset": [1, 2]}, "dataset is a list: give a Manifest"),
    ],
)
def test_a_wrong_argument_of_a_job_is_refused(make_job, proxy, options, text):
    with pytest.raises(shade.ConfigError, match=text):
        make_job("wrong", **options)
    assert "wrong" not in proxy.jobs


def test_integers_of_numpy_are_ranks(make_job, proxy):
    assert make_job("run", rank=np.int64(1), world_size=np.int64(2)).world_size == 2
    assert proxy.jobs["run"]["world_size"] == 2


def test_integers_of_numpy_begin_an_epoch(make_job, proxy):
    job = make_job()
    job.begin(np.int64(2), np.int64(3), length=np.int64(40))
    job.report([1, 2], [1.0, 2.0])
    job.gave(np.int64(5))
    assert job.flush()
    (step,) = proxy.progress
    assert (step["epoch"], step["position"]) == (2, 5)


def test_integers_of_numpy_are_the_position_of_a_checkpoint(make_job, proxy):
    job = make_job()
    sampler = shade.ShadeSampler(job, batch_size=4)
    state = sampler.state_dict(position=8) | {"epoch": np.int64(1), "position": np.int64(8)}
    sampler.load_state_dict(state)
    assert list(sampler) == sampler.order(1).tolist()[8:]
    assert job.flush()
    assert proxy.progress[-1]["position"] == 8


@pytest.mark.parametrize(("bucket", "prefix"), [("", ""), ("s3://b", ""), (None, ""), ("b", None), (7, "")])
def test_a_bucket_that_is_none_is_refused(client, proxy, bucket, prefix):
    for make in (client.listing, lambda b, p: client.manifest(bucket=b, prefix=p)):
        with pytest.raises(shade.ConfigError, match="give the bucket's name without s3://"):
            make(bucket, prefix)
    assert not proxy.listings


def test_what_is_no_entry_is_refused(client, origin):
    with pytest.raises(shade.ConfigError, match=r"'s3://b/k' is no sample: give Entry\(bucket, key\)"):
        client.read("s3://b/k")
    with pytest.raises(shade.ConfigError, match="out is a list: make it an array"):
        client.read_into(shade.Manifest.from_entries("d", [shade.Entry("b", "k")]), [0], [[0]])


@pytest.mark.parametrize("options", [{"batch_size": 1.5}, {"batch_size": "4"}, {"coverage_epochs": None}])
def test_wrong_numbers_of_a_sampler_are_refused(make_job, options):
    with pytest.raises(shade.ConfigError, match="all of them whole numbers"):
        shade.ShadeSampler(make_job(), "importance", **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ids": [1.5] * 40}, r"ids float64\[40\]: give one sample id, an integer, for each index"),
        ({"ids": "abc"}, "give one sample id, an integer"),
        ({"ahead": "8"}, "ahead '8': give a whole number from 0 on"),
        ({"announce_epochs": -1}, "announce_epochs -1: give a whole number from 0 on"),
        ({"job": "run"}, "job is a str: give what client.job"),
    ],
)
def test_a_wrong_argument_of_announce_is_refused(make_job, options, text):
    with pytest.raises(shade.ConfigError, match=text):
        shade.announce(SequentialSampler(range(40)), **({"job": make_job()} | options))


@pytest.mark.parametrize("options", [{"announce_epochs": "2"}, {"epochs": "3"}, {"epochs": -1}])
def test_a_wrong_number_of_epochs_is_refused(make_job, options):
    with pytest.raises(shade.ConfigError, match=r"epochs .*: give a whole number from 0 on"):
        shade.ShadeSampler(make_job(), **options)
    with pytest.raises(shade.ConfigError, match=r"job is a NoneType: give what client\.job"):
        shade.ShadeSampler(None)


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", None])
def test_a_wrong_epoch_is_refused_and_changes_nothing(make_job, epoch):
    sampler = shade.ShadeSampler(make_job(), "importance")
    with pytest.raises(shade.ConfigError, match=r"epoch .*: give a whole number from 0 on"):
        sampler.set_epoch(epoch)
    assert (sampler.epoch, sampler.job.epoch) == (0, 0)
    with pytest.raises(shade.ConfigError, match="position -1: give a whole number from 0 on"):
        sampler.state_dict(position=-1)


def test_an_epoch_may_be_an_integer_of_torch(make_job, proxy):
    sampler = shade.ShadeSampler(make_job())
    sampler.set_epoch(torch.tensor(2))
    assert list(sampler) == sampler.order(2).tolist()
    assert sampler.job.flush()
    assert (type(sampler.epoch), sampler.state_dict()["epoch"]) == (int, 2)
    assert ("run", 2, 0) in proxy.orders


@pytest.mark.parametrize("name", ["", None, "a/b", "x" * 129])
def test_a_name_that_the_proxy_would_refuse_later_is_refused(name):
    with pytest.raises(shade.ConfigError, match="cannot name a dataset"):
        shade.Manifest.from_entries(name, [shade.Entry("b", "k")])


def test_what_is_no_manifest_decode_or_token_is_refused(client, manifest):
    with pytest.raises(shade.ConfigError, match="manifest is a list: give a Manifest"):
        shade.S3Dataset(client, manifest=[1, 2])
    with pytest.raises(shade.ConfigError, match="decode is a str: give a function"):
        shade.S3Dataset(client, manifest=manifest, decode="jpg")
    with pytest.raises(shade.ConfigError, match="the token is a bytes: give"):
        shade.Client(NOBODY, token=b"hidden")
