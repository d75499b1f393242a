import re
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (as everybody calls it)

from shadeproxy_sdk import losses as captured_losses

LOSSES = torch.tensor([[1.0, 5.0, 9.0], [2.0, 2.0, 2.0], [0.0, 9.0, 9.0]])


def order_of(job):
    """Return the ids in the order of their weights, the smallest weight first."""
    weights = job.weights(0)
    return np.argsort(weights)[: int(np.isfinite(weights).sum())].tolist()


def test_token_losses_count_by_their_mean(make_job):
    job = make_job()
    job.report([4, 5, 6], LOSSES)
    assert order_of(job) == [5, 4, 6]
    assert job.mean_loss == pytest.approx(13 / 3)


@pytest.mark.parametrize(
    "which",
    [
        {"mask": torch.tensor([[1, 0, 0], [1, 1, 1], [1, 0, 0]])},
        {"mask": np.array([[True, False, False], [True, True, True], [True, False, False]])},
        {"lengths": torch.tensor([1, 3, 1])},
        {"lengths": [1, 3, 1]},
    ],
)
def test_only_tokens_that_count_are_in_the_mean(make_job, which):
    job = make_job()
    job.report([4, 5, 6], LOSSES, **which)
    assert order_of(job) == [6, 4, 5]
    assert job.mean_loss == pytest.approx(1.0)


def test_a_language_models_losses_as_its_loop_has_them(make_job):
    job = make_job()
    logits, labels = torch.zeros(3, 6, 11), torch.randint(11, (3, 6))
    # For the first sample, the model gives the right answer a high probability.
    logits[0, :, 5], labels[0, :] = 50.0, 5
    labels[1, 2:] = -100
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    job.report([7, 8, 9], losses, mask=labels != -100)
    assert order_of(job)[0] == 7
    assert job.mean_loss == pytest.approx(2 / 3 * np.log(11))


def test_masked_losses_may_be_anything(make_job):
    job = make_job()
    job.report([1, 2], torch.tensor([[1.0, torch.nan], [2.0, torch.inf]]), lengths=[1, 1])
    assert order_of(job) == [1, 2]
    assert job.stats().not_finite == 0


def test_a_sample_without_tokens_is_left_out(make_job):
    job = make_job()
    job.report([1, 2], torch.ones(2, 3), lengths=[0, 3])
    assert order_of(job) == [2]
    assert (job.stats().not_finite, job.stats().rejected) == (1, 0)


def test_pixels_count_by_their_mean_too(make_job):
    job = make_job()
    job.report([1, 2], torch.stack([torch.full((4, 4), 2.0), torch.eye(4)]))
    assert order_of(job) == [2, 1]


@pytest.mark.parametrize(
    ("losses", "which", "text"),
    [
        (torch.tensor(0.5), {}, "a single number: give one loss per sample, as with reduction='none'"),
        (torch.ones(12), {}, r"token losses as (samples, tokens), here losses.view(3, 4)"),
        (torch.ones(4, 3), {}, "(3,) ids and (4, 3) losses: give one loss per sample"),
        (torch.ones(3, 4), {"mask": torch.ones(3, 5)}, "a mask (3, 5) for losses (3, 4): give both the same"),
        (torch.ones(3, 4), {"lengths": [4]}, "lengths is one number of tokens a sample"),
        (torch.ones(3), {"lengths": [1, 1, 1]}, "lengths is one number of tokens a sample"),
        (torch.ones(3, 4), {"lengths": [1, 1, 1], "mask": torch.ones(3, 4)}, "either a mask or lengths"),
    ],
)
def test_other_shapes_are_refused_with_what_to_pass(make_job, caplog, losses, which, text):
    job = make_job()
    job.report([1, 2, 3], losses, **which)
    assert job.weights(0) is None
    assert job.stats().rejected == 1
    assert re.search(re.escape(text), caplog.text)


def test_an_empty_batch_is_nothing(make_job):
    job = make_job()
    job.report(torch.empty(0, dtype=torch.int64), torch.empty(0, 4))
    assert job.weights(0) is None
    assert job.stats().rejected == 0


class Device:
    """A stand-in for torch with the functions that ``capture`` uses. Its device finishes its copies only when
    an event is waited for.
    """

    float32 = np.float32

    def __init__(self):
        self.made = 0
        self.is_plain = False
        self.copies = []
        self.cuda = self

    @contextmanager
    def inference_mode(self, *, mode):
        assert not mode
        self.is_plain = True
        yield
        self.is_plain = False

    def empty(self, shape, *, dtype, device, pin_memory):
        assert self.is_plain, "a tensor of inference mode could not be written to outside of it"
        assert device == "cpu", "whatever the default device is"
        assert pin_memory
        self.made += 1
        return HostTensor(self, shape, dtype)

    def Event(self):  # noqa: N802 - torch's name
        return self

    def current_stream(self, device):
        assert device == "cuda:1"
        return "stream of cuda:1"

    def record(self, stream):
        assert stream == "stream of cuda:1"

    def synchronize(self):
        for host, values in self.copies:
            host.values[:] = values
        self.copies.clear()


class HostTensor:
    def __init__(self, device, shape, dtype):
        self.device, self.values = device, np.zeros(shape, dtype)

    def copy_(self, tensor, *, non_blocking):
        assert non_blocking
        self.device.copies.append((self, tensor.values.copy()))

    def numpy(self):
        return self.values


class CudaTensor:
    is_cuda, device = True, "cuda:1"

    def __init__(self, values):
        self.values = np.asarray(values)
        self.shape, self.dtype = self.values.shape, self.values.dtype

    def detach(self):
        return self

    def is_floating_point(self):
        return self.dtype.kind == "f"


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setitem(sys.modules, "torch", device)
    monkeypatch.setattr(captured_losses, "_idle_buffers", {})
    return device


def test_a_copy_from_a_device_is_waited_for_only_when_it_is_needed(device):
    captured = captured_losses.capture(tensor := CudaTensor(np.array([0.5, 2.0], np.float16)))
    tensor.values[:] = 9
    assert len(device.copies) == 1
    array = captured_losses.settle(captured)
    assert (array.dtype, array.tolist()) == (np.float32, [0.5, 2.0])


def test_copies_from_a_device_use_memory_again_but_not_while_it_is_in_use(device):
    first, second = (captured_losses.capture(CudaTensor([1.0 * n, 2.0 * n])) for n in (1, 2))
    assert device.made == 2
    kept = [captured_losses.settle(first), captured_losses.settle(second)]
    third = captured_losses.capture(CudaTensor([3.0, 6.0]))
    assert captured_losses.settle(third).tolist() == [3.0, 6.0]
    assert device.made == 2
    assert [one.tolist() for one in kept] == [[1.0, 2.0], [2.0, 4.0]]
    for size in range(3, 40):
        captured_losses.settle(captured_losses.capture(CudaTensor(np.ones(size))))
    assert len(captured_losses._idle_buffers) <= 16
