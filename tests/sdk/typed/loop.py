"""A training loop as a user writes it, with the type of every call. test_typing.py type-checks this file, and
no test runs it.
"""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import shadeproxy_sdk as shade
from shadeproxy_sdk.huggingface import ShadeTrainerCallback
from shadeproxy_sdk.lightning import ShadeCallback


def decode(data: bytes, key: str) -> tuple[bytes, int]:
    return data, len(key)


def clients() -> shade.Client:
    origin = shade.Origin("https://s3.example.org", access_key="AKEY", secret_key="secret")
    assert_type(shade.Origin.from_environment(), shade.Origin | None)
    return shade.Client(
        "http://127.0.0.1:9001",
        token=None,
        credentials=shade.Credentials("AKEY", "secret"),
        origin=origin,
        timeout_s=10,
        retry_s=0.5,
    )


def reads(client: shade.Client) -> shade.Manifest:
    manifest = client.manifest(bucket="train", prefix="imagenet/")
    assert_type(manifest, shade.Manifest)
    entry = manifest[0]
    assert_type(entry, shade.Entry)
    assert_type((entry.bucket, entry.key, entry.offset, entry.length), tuple[str, str, int, int | None])
    assert_type(client.read(entry), bytes)
    assert_type(client.read_many(manifest, [3, 1, 2]), list[bytes])
    client.read_into(manifest, range(3), np.empty((3, 7), np.uint8))
    assert_type([entry.key for entry in manifest], list[str])
    assert_type((len(manifest), manifest.digest, manifest.to_jsonl()), tuple[int, str, bytes])
    mine = shade.Manifest.from_entries("mine", [shade.Entry("bucket", "key", 0, 100)])
    client.register(mine)
    assert_type(shade.Manifest.from_jsonl("mine", b""), shade.Manifest)
    return mine


def shards(client: shade.Client) -> None:
    for manifest in (
        shade.tar_manifest(client, bucket="train", prefix="shards/", extension="jpg"),
        shade.mds_manifest(client, bucket="train", prefix="mds/"),
        shade.tfrecord_manifest(client, bucket="train", keys=["a", "b"]),
    ):
        assert_type(manifest, shade.Manifest)
    assert_type(shade.tar_members(b""), dict[str, Any])


def datasets(client: shade.Client, manifest: shade.Manifest) -> shade.S3Dataset:
    shade.S3Dataset(client, bucket="train", prefix="imagenet/", decode=decode)
    shade.S3Dataset(client, manifest=manifest, decode=shade.tar_members, views=True)
    data = shade.S3Dataset(client, manifest=manifest, decode=shade.as_tensor)
    assert_type(data[0], tuple[Any, ...])
    assert_type((len(data), data.manifest), tuple[int, shade.Manifest])
    return data


def samplers(job: shade.Job) -> shade.ShadeSampler:
    for mode in ("uniform", "importance", "shade", "reorder", "substitute"):
        shade.ShadeSampler(job, mode=mode)
    sampler = shade.ShadeSampler(job, "reorder", seed=1, batch_size=8, announce_epochs=1, epochs=3)
    assert_type(iter(sampler), Iterator[int])
    assert_type((len(sampler), sampler.batches, sampler.distinct_samples), tuple[int, int, int])
    assert_type(sampler.order(0), NDArray[np.uint32])
    assert_type(sampler.validated(accuracy=0.5), float)
    assert_type(sampler.validated(loss=1), float)
    state = sampler.state_dict(position=3)
    assert_type(state, dict[str, Any])
    sampler.load_state_dict(state)
    return sampler


def train(data: shade.S3Dataset, job: shade.Job, sampler: shade.ShadeSampler) -> None:
    loader = DataLoader(data, batch_size=8, sampler=sampler, collate_fn=shade.collate)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, ids in job.timed(loader):
            losses: torch.Tensor = x
            job.report(ids, losses)
            (losses * sampler.weight_of(ids)).mean()
    batches: list[list[int]] = [[1, 2], [3]]
    assert_type(job.timed(batches), Iterator[list[int]])
    assert_type(shade.StallMeter().watch(batches), Iterator[list[int]])
    assert_type(shade.StallMeter().total_s, float)
    assert_type(shade.collate([(1, 2)]), tuple[Any, ...])


def scores(job: shade.Job) -> None:
    job.report(np.arange(4), np.ones(4))
    job.report([1, 2], [0.5, 0.25])
    job.report(np.arange(4), np.ones((4, 7)), lengths=[7, 7, 3, 1])
    job.report(np.arange(4), np.ones((4, 7)), mask=np.ones((4, 7)))
    job.progress(128, stall_s=0.25)
    stats = job.stats()
    assert_type(stats, shade.JobStats)
    assert_type((stats.reported, stats.sent, stats.announced, stats.dropped), tuple[int, int, int, int])
    assert_type((job.name, job.flush(), job.close(timeout_s=2)), tuple[str, bool, bool])


def own_sampler(job: shade.Job) -> int:
    announced = shade.announce([1, 2], job, ids=[5, 6], ahead=4)
    assert_type(announced, shade.Announced)
    announced.set_epoch(1)
    indices: Iterator[int] = iter(announced)
    return next(indices) + len(announced)


def frameworks(sampler: shade.ShadeSampler) -> None:
    callback = ShadeCallback(sampler, monitor="val_acc", better="max")
    callback.report([1], [0.5])
    assert_type(callback.state_dict(), dict[str, Any])
    ShadeTrainerCallback(sampler, monitor="eval_loss", better="min").report([1], [0.5])


def main() -> None:
    client = clients()
    try:
        job = client.job("resnet50", dataset=reads(client), rank=0, world_size=2, resume_scores=True)
        assert_type(job, shade.Job)
        train(datasets(client, job.manifest), job, samplers(job))
    except shade.ControlError as error:
        assert_type((error.status, error.code, error.message), tuple[int, str, str])
    except (shade.ConfigError, shade.ReadError) as error:
        assert_type(error, shade.ConfigError | shade.ReadError)
    except shade.ShadeError:
        raise
    finally:
        client.close()
