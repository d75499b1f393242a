"""Typical mistakes of users. mypy must report the named error in each marked line, and no error in any other
line.
"""

import numpy as np

import shadeproxy_sdk as shade
from shadeproxy_sdk.lightning import ShadeCallback


def mistakes(client: shade.Client, job: shade.Job, manifest: shade.Manifest) -> None:
    shade.Sampler(job)  # error: attr-defined
    shade.Client("http://127.0.0.1:9001", "token", "http://127.0.0.1:9000")  # error: call-arg
    shade.Client(port=9001)  # error: call-arg
    shade.Client("http://127.0.0.1:9001", origin="http://127.0.0.1:9000")  # error: arg-type
    client.job("run")  # error: call-arg
    client.job("run", dataset="imagenet")  # error: arg-type
    client.job("run", manifest, rank=0)  # error: call-arg
    client.manifest("train", "imagenet/")  # error: call-arg
    client.read_many(manifest, 3)  # error: arg-type
    client.read("train/key")  # error: arg-type
    rows = np.empty((1, 7), np.float32)
    client.read_into(manifest, [1], rows)  # error: arg-type
    shade.Manifest.from_entries("mine", ["train/key"])  # error: list-item
    manifest[0].size  # error: attr-defined  # noqa: B018
    shade.S3Dataset(client, "train", "imagenet/")  # error: call-arg
    shade.S3Dataset(client, bucket="train", decode="jpg")  # error: arg-type
    shade.S3Dataset(job, bucket="train")  # error: arg-type
    shade.ShadeSampler(job, "best")  # error: arg-type
    shade.ShadeSampler(manifest)  # error: arg-type
    shade.ShadeSampler(job, batchsize=8)  # error: call-arg
    sampler = shade.ShadeSampler(job)
    sampler.set_epoch("0")  # error: arg-type
    sampler.validated(0.5)  # error: call-arg
    sampler.load_state_dict(3)  # error: arg-type
    shade.announce([1], "run")  # error: arg-type
    shade.announce(8, job)  # error: arg-type
    job.reports([1], [0.5])  # error: attr-defined
    job.report([1])  # error: call-arg
    job.report([1], [0.5], [True])  # error: call-arg
    job.progress("128")  # error: arg-type
    job.stats().announced = 3  # error: misc
    stalled: int = shade.StallMeter().total_s  # error: assignment
    job.timed(stalled)  # error: arg-type
    shade.tar_manifest("train")  # error: call-arg, arg-type
    ShadeCallback(sampler, better="least")  # error: arg-type
