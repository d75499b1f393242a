"""Fixtures for tests of training frameworks. A sample is a label and four features."""

import pytest

import shadeproxy_sdk as shade
from tests.support.labelled import COUNT, pack


@pytest.fixture(scope="module")
def huggingface():
    pytest.importorskip("accelerate", reason="needs accelerate: pip install --group frameworks")
    pytest.importorskip("transformers", reason="needs transformers: pip install --group frameworks")
    from tests.support import huggingface

    return huggingface


@pytest.fixture(scope="module")
def lightning():
    pytest.importorskip("lightning.pytorch", reason="needs lightning: pip install --group frameworks")
    from tests.support import lightning

    return lightning


@pytest.fixture
def samples(client, proxy):
    """Return a manifest of COUNT samples that all lie in one object."""
    proxy.put("shards", all=b"".join(map(pack, range(COUNT))))
    entries = [shade.Entry("shards", "all", 20 * number, 20) for number in range(COUNT)]
    return shade.Manifest.from_entries("train", entries)


@pytest.fixture
def make_sampler(make_job, samples):
    def make(mode="uniform", name="run", **options):
        return shade.ShadeSampler(make_job(name, dataset=samples), mode=mode, batch_size=4, **options)

    return make
