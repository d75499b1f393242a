"""Several threads copy located samples. The bytes are right, and no thread still writes after the call has
returned.
"""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch.utils.data

import shadeproxy_sdk as shade
from shadeproxy_sdk import copying, locate
from shadeproxy_sdk.batch_buffer import BatchBuffer


@pytest.fixture
def crowd(monkeypatch):
    """Let three threads copy even a few bytes. Return the ids of the threads that have copied."""
    monkeypatch.setattr(copying, "threads_for", lambda _: 3)
    seen, read = set(), os.preadv

    def noted(*call):
        seen.add(threading.get_ident())
        return read(*call)

    monkeypatch.setattr(os, "preadv", noted)
    return seen


def test_samples_of_many_pieces_come_whole_whoever_copies_them(client, manifest, near, crowd):
    near.keep_all()
    ids = [*range(40), 3, 3, 17]
    assert client.read_many(manifest, ids) == [near.bodies[i] for i in ids]
    assert len(crowd) > 1
    assert not near.batches
    assert not near.proxy.reads


def test_what_one_of_them_cannot_copy_is_read_otherwise(client, manifest, near, crowd):
    near.keep_all()
    client.read_many(manifest, range(2))
    near.evict_after_locate = {"2/000", "2/001", "1/019"}
    assert client.read_many(manifest, range(40)) == near.bodies
    assert len(crowd) > 1


def located(*pieces):
    rows = np.zeros(sum(pieces), locate.RECORD)
    rows["index"] = np.repeat(np.arange(len(pieces)), pieces)
    return locate.Located(["f"], rows, np.zeros(len(pieces), np.int64))


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
@pytest.mark.parametrize("pieces", [(), (1,), (5,), (1, 1, 1, 1), (1, 7, 1, 2), (9, 1), (1, 9)])
def test_no_item_is_shared_by_two_parts(pieces, parts):
    whole = located(*pieces)
    split = whole.split(parts)
    assert 1 <= len(split) <= parts
    found = [set(part.rows["index"].tolist()) for part in split]
    assert sum(map(len, found)) == len(set().union(*found)) == len(pieces)
    assert np.concatenate([part.rows for part in split]).tobytes() == whole.rows.tobytes()


def test_nobody_writes_any_more_once_it_has_failed(client, monkeypatch):
    monkeypatch.setattr(copying, "threads_for", lambda _: 2)
    caller, failed, ended = threading.get_ident(), threading.Event(), threading.Event()

    def copy(*_):
        if threading.get_ident() == caller:
            failed.set()
            raise KeyboardInterrupt
        failed.wait(20)
        ended.set()
        return 1

    monkeypatch.setattr(locate, "copy", copy)
    with pytest.raises(KeyboardInterrupt):
        copying.copy(located(1, 1), [0, 1], BatchBuffer([0, 1]), client.connections)
    assert ended.is_set()


def test_one_copies_all_when_no_thread_can_be_had(client, manifest, near, monkeypatch):
    # One thread copies everything if the pool accepts no work, because the client was closed meanwhile.
    near.keep_all()
    monkeypatch.setattr(copying, "threads_for", lambda _: 3)
    client.connections.executor.shutdown()
    assert client.read_many(manifest, range(40)) == near.bodies
    assert not near.batches
    assert not near.proxy.reads


@pytest.mark.parametrize(
    ("cores", "workers", "ranks", "left"),
    [
        (1, None, None, 1),
        (2, None, None, 2),
        (16, 8, None, 2),
        (16, 8, "2", 1),
        (2, 8, "x", 1),
        (8, 2, "0", 4),
    ],
)
def test_cores_are_shared_with_workers_and_ranks(monkeypatch, cores, workers, ranks, left):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    info = None if workers is None else SimpleNamespace(num_workers=workers)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: info)
    assert copying.cores_of_this_process() == left


def test_little_is_copied_by_one(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    many, big = located(*[1] * 64), located(*[1] * 64)
    many.rows["length"], big.rows["length"] = 20_000, 100_000
    assert (copying.threads_for(many), copying.threads_for(big)) == (1, 2)
    assert copying.threads_for(located()) == 1


# ---------------------------------------------------------------------- stacked


def test_samples_of_one_length_are_a_stack_that_is_a_list_to_everybody_else(client, near, even):
    manifest, bodies = even
    near.keep_all()
    data = shade.S3Dataset(client, manifest=manifest, decode=shade.as_tensor)
    data[0]
    samples = data.__getitems__([4, 2, 2, 9])
    assert len(samples) == 4
    assert [(bytes(x.numpy()), number) for x, number in samples] == [(bodies[i], i) for i in (4, 2, 2, 9)]
    assert [number for _, number in samples[1:3]] == [2, 2]
    value, number = samples[-1]
    assert (bytes(value.numpy()), number) == (bodies[9], 9)
    x, ids = shade.collate(samples)
    assert ids.tolist() == [4, 2, 2, 9]
    assert x.shape == (4, 50)
    assert x.data_ptr() == samples[0][0].data_ptr()
    x[1] = 0
    # A sample that occurs twice has separate bytes for each occurrence.
    assert bytes(x[2].numpy()) == bodies[2]
    default, _ = torch.utils.data.default_collate(list(data.__getitems__([1, 3])))
    assert bytes(default[1].numpy()) == bodies[3]
