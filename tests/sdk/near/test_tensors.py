"""Batches as tensors. They have the right bytes, and are stacked without a copy if possible."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import shadeproxy_sdk as shade
from shadeproxy_sdk import tensors


@pytest.fixture
def data(client, near, even):
    manifest, bodies = even
    near.keep(*(manifest[i].key for i in range(0, 16, 2)))
    data = shade.S3Dataset(client, manifest=manifest, decode=shade.as_tensor)
    data.__getitems__(range(16))  # Now the client knows the samples' length, and that it can open the files.
    return data, torch.from_numpy(np.array([list(body) for body in bodies], np.uint8))


def test_a_batch_is_stacked_without_a_copy(data, near):
    data, expected = data
    ids = [5, 2, 9, 2, 0, 15]
    samples = data.__getitems__(ids)
    x, numbers = shade.collate(samples)
    assert torch.equal(x, expected[ids])
    assert numbers.tolist() == ids
    assert x.data_ptr() == samples[0][0].data_ptr()
    assert x.is_contiguous()
    assert {len(request["items"]) for request in near.batches[-1:]} == {3}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_a_batch_may_be_named_by_a_tensor_or_an_array(data, near, make):
    data, expected = data
    near.batches.clear()
    x, numbers = shade.collate(data.__getitems__(make([5, 2, 9, 5])))
    assert torch.equal(x, expected[[5, 2, 9, 5]])
    assert numbers.tolist() == [5, 2, 9, 5]
    assert [len(request["items"]) for request in near.batches] == [2]  # 2 is cached.


def test_duplicates_are_fetched_once_and_share_no_memory(data, near):
    data, expected = data
    near.batches.clear()
    first, second = (x for x, _ in data.__getitems__([3, 3]))
    assert torch.equal(first, second)
    assert [len(request["items"]) for request in near.batches] == [1]
    first += 1
    assert torch.equal(second, expected[3])


def test_one_sample_is_a_batch_of_one(data):
    data, expected = data
    x, sample_id = data[4]
    assert torch.equal(x, expected[4])
    assert sample_id == 4


def test_samples_of_unequal_length_are_tensors_of_their_own(client, near, manifest):
    data = shade.S3Dataset(client, manifest=manifest, decode=shade.as_tensor)
    near.keep_all()
    for _ in range(2):
        assert [bytes(x.numpy()) for x, _ in data.__getitems__(range(40))] == near.bodies
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        shade.collate(data.__getitems__([1, 2]))


def test_an_object_that_changes_its_length_is_whole(data, near):
    data, expected = data
    near.proxy.objects["train", "even/05"] = b"x" * 49
    near.proxy.objects["train", "even/07"] = b"y" * 51
    near.evict("even/06")
    samples = [bytes(x.numpy()) for x, _ in data.__getitems__([4, 5, 6, 7])]
    assert samples == [bytes(expected[4].numpy()), b"x" * 49, bytes(expected[6].numpy()), b"y" * 51]


def test_tensors_over_plain_gets_are_the_same(make_client, even, near):
    near.proxy.offers.clear()
    manifest, bodies = even
    data = shade.S3Dataset(make_client(near.proxy), manifest=manifest, decode=shade.as_tensor)
    x, _ = shade.collate(data.__getitems__(range(16)))
    assert [bytes(row.numpy()) for row in x] == bodies


@pytest.mark.parametrize("length", [0, 1, 5])
def test_as_tensor_of_bytes(length):
    x = shade.as_tensor(b"hello"[:length])
    assert (x.dtype, bytes(x.numpy())) == (torch.uint8, b"hello"[:length])


WHOLE = tensors._buffer(24)
WHOLE.copy_(torch.arange(24))


@pytest.mark.parametrize(
    ("column", "copied"),
    [
        ([WHOLE[0:4], WHOLE[4:8], WHOLE[8:12]], False),
        ([WHOLE[12:24].view(2, 6)], False),
        ([WHOLE[0:12].view(3, 4), WHOLE[12:24].view(3, 4)], False),
        ([WHOLE[4:8], WHOLE[0:4]], True),
        ([WHOLE[0:4], WHOLE[0:4]], True),
        ([WHOLE[0:4], WHOLE[8:12]], True),
        ([WHOLE[0:4], WHOLE[4:8].clone()], True),
        ([WHOLE[0:4], WHOLE[4:8].view(torch.int8)], True),
        ([WHOLE[0:8:2], WHOLE[4:12:2]], True),
        ([WHOLE[0:4], WHOLE.view(6, 4)[1:3, 0:2].reshape(-1)], True),
        ([WHOLE[0:0], WHOLE[0:0]], True),
    ],
)
def test_collate_copies_only_where_it_must(column, copied):
    x, _ = shade.collate([(value, i) for i, value in enumerate(column)])
    assert torch.equal(x, torch.stack([value.view(torch.uint8) for value in column]))
    assert (x.untyped_storage().data_ptr() != WHOLE.untyped_storage().data_ptr()) == copied


def test_a_batch_of_rows_of_a_table_is_a_copy():
    """Rows of a table that ``decode`` returns lie side by side, as the samples of a batch do."""
    table = torch.arange(12.0).view(3, 4)
    x, _ = shade.collate([(row, i) for i, row in enumerate(table.unbind())])
    assert torch.equal(x, table)
    x.zero_()
    assert torch.equal(table, torch.arange(12.0).view(3, 4))


def test_batches_lie_in_main_memory_whatever_the_default_device_is(data):
    data, expected = data
    with torch.device("meta"):
        x, ids = shade.collate(data.__getitems__([5, 2, 9]))
        _, alone = shade.collate([(x[0], 4), (x[2], 7)])
    assert x.device.type == ids.device.type == alone.device.type == "cpu"
    assert torch.equal(x, expected[[5, 2, 9]])
    assert ids.tolist() == [5, 2, 9]


def test_tensors_that_want_gradients_are_stacked_by_torch():
    values = torch.zeros(4, requires_grad=True)
    x, _ = shade.collate([(values[0:2], 0), (values[2:4], 1)])
    x.sum().backward()
    assert values.grad.tolist() == [1, 1, 1, 1]


def test_views_are_decoded_in_place(client, near, even):
    manifest, bodies = even
    near.keep_all()

    def decode(view, key):
        assert type(view) is memoryview
        assert not view.readonly
        return torch.frombuffer(view, dtype=torch.uint8), key

    data = shade.S3Dataset(client, manifest=manifest, decode=decode, views=True)
    data.__getitems__(range(16))
    samples = data.__getitems__([1, 2, 3])
    x, keys, _ = shade.collate(samples)
    assert keys == ["even/01", "even/02", "even/03"]
    assert [bytes(row.numpy()) for row in x] == bodies[1:4]
    near.proxy.offers.clear()
    assert shade.S3Dataset(client, manifest=manifest, views=True)[1] == (memoryview(bodies[1]), 1)


def test_memory_is_shared_in_workers_pinned_beside_cuda_and_plain_elsewhere(monkeypatch):
    assert not tensors._buffer(10).is_shared()
    monkeypatch.setattr(tensors, "get_worker_info", object)
    assert tensors._buffer(10).is_shared()


class Shared:
    """A collate function for workers. It also returns whether the batch lies in shared memory before it is
    sent.
    """

    def __call__(self, samples):
        x, ids = shade.collate(samples)
        return x, ids, x.is_shared(), x.data_ptr() == samples[0][0].data_ptr()


# The threads of the fake proxy run in this process. From Python 3.12 on, a fork in a process with threads
# gives a warning.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_give_what_the_main_process_gives(data, near, method):
    data, expected = data
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    loader = DataLoader(
        data,
        batch_size=4,
        sampler=ids,
        num_workers=1 if method == "spawn" else 2,  # Each spawned worker must import torch, so use only one.
        multiprocessing_context=method,
        timeout=60,
        collate_fn=Shared() if method == "fork" else shade.collate,
    )
    alone = [shade.collate(data.__getitems__(ids[i : i + 4])) for i in (0, 4, 8)]
    near.proxy.reads.clear()
    for (x, numbers, *told), (same, same_numbers) in zip(loader, alone, strict=True):
        assert torch.equal(x, same)
        assert torch.equal(x, expected[numbers])
        assert torch.equal(numbers, same_numbers)
        assert told in ([True, True], [])
    assert not near.proxy.reads


def test_dataset_of_tensors_is_picklable(data):
    data, expected = data
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[3][0], expected[3])
    copy._client.close()
