"""A model with one weight a class, and samples that are a label and four features."""

import struct

import pytest
import torch

import shadeproxy_sdk as shade

COUNT = 24


def pack(number):
    return struct.pack("<5f", number % 3, *(float((number * step) % 7) for step in (1, 2, 3, 4)))


def unpack(data):
    label, *features = struct.unpack("<5f", data)
    return torch.tensor(features), int(label)


@pytest.fixture
def samples(client, proxy):
    """The manifest of COUNT samples in one object."""
    proxy.put("shards", all=b"".join(map(pack, range(COUNT))))
    entries = [shade.Entry("shards", "all", 20 * number, 20) for number in range(COUNT)]
    return shade.Manifest.from_entries("train", entries)


@pytest.fixture
def make_sampler(make_job, samples):
    def make(mode="uniform", name="run", **options):
        return shade.ShadeSampler(make_job(name, dataset=samples), mode=mode, batch_size=4, **options)

    return make
