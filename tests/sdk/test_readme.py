from pathlib import Path

import numpy as np
import torch

import shadeproxy_sdk as shade

README = Path(shade.__file__).parents[1] / "README.md"


def example(number, proxy):
    """Return an example of the README, changed to connect to ``proxy``. Only Python blocks that connect to a
    proxy are counted, from 0.
    """
    blocks = [part.split("```")[0] for part in README.read_text().split("```python\n")[1:]]
    text = [block for block in blocks if "http://127.0.0.1:9001" in block][number]
    return text.replace("http://127.0.0.1:9001", proxy.url).replace("http://127.0.0.1:9000", proxy.url)


def decode(data, key):
    return torch.from_numpy(np.array([len(data), data[0]], np.float32)), int(key.split("/")[1])


class Kept(dict):
    """A dict of announced orders. ``kept`` also has the orders that were withdrawn later."""

    def __init__(self):
        self.kept = {}

    def __setitem__(self, name, ids):
        self.kept[name] = ids
        super().__setitem__(name, ids)


def test_example_trains(client, proxy):
    proxy.objects = {("train", f"imagenet/{key}"): body for (_, key), body in proxy.objects.items()}
    model = torch.nn.Linear(2, 3)
    names = {
        "decode": decode,
        "rank": 0,
        "world": 1,
        "epochs": 3,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-6),
    }
    exec(example(0, proxy).replace("num_workers=8", "num_workers=0"), names)
    names["client"].close()
    assert sorted(proxy.scores["resnet50"]) == list(range(40))
    assert proxy.progress[-1]["position"] == 40
    assert names["sampler"].distinct_samples < 40


def test_example_with_a_dataset_of_ones_own_announces_what_it_reads(proxy, monkeypatch):
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "y", "DEFAULT_REGION": "eu-x-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    proxy.objects = {("train", f"imagenet/{key}"): body for (_, key), body in proxy.objects.items()}
    seen = []
    names = {"decode": lambda data: data[0], "epochs": 2, "train": lambda batch: seen.extend(batch.tolist())}
    proxy.orders = Kept()
    exec(example(-1, proxy).replace("num_workers=8", "num_workers=0"), names)
    names["client"].close()
    keys = proxy.keys("train", "imagenet/")
    read = [keys.index(key) for _, key, _ in proxy.reads]
    assert sorted(read[:40]) == sorted(read[40:]) == list(range(40))
    assert [proxy.orders.kept["resnet50", epoch, 0] for epoch in (0, 1)] == [read[:40], read[40:]]
    assert len(seen) == 80


def test_example_with_parts_reads_each_sample_in_one_of_them(client, proxy):
    proxy.objects = {("train", f"imagenet/{key}"): body for (_, key), body in proxy.objects.items()}
    blocks = [part.split("```")[0] for part in README.read_text().split("```python\n")[1:]]
    (text,) = [block for block in blocks if "imagenet-training" in block]
    names = {"client": client, "shade": shade, "decode": decode}
    exec(text, names)
    parts = [set(names[name]) for name in ("training", "validation")]
    assert [len(part) for part in parts] == [36, 4]
    assert len(parts[0] | parts[1]) == 40
    client.job("run", dataset=names["data"].manifest)
    assert names["training"].tag is not None
    assert names["validation"].tag is None


def test_example_without_torch_reads(proxy):
    proxy.objects = {("train", f"records/{i}"): bytes([i]) * 7 for i in range(5)}
    names = {}
    exec(example(1, proxy), names)
    names["client"].close()
    assert names["samples"] == [bytes([i]) * 7 for i in (3, 1, 2)]
    assert [bytes(row) for row in names["batch"]] == names["samples"]


def test_example_with_an_iterable_dataset_announces_what_it_reads(proxy):
    proxy.objects = {("train", f"imagenet/{key}"): body for (_, key), body in proxy.objects.items()}
    seen = []
    names = {
        "decode": lambda data: data[0],
        "epochs": 2,
        "train": lambda batch: seen.extend(batch[1].tolist()),
    }
    proxy.orders = Kept()
    exec(example(2, proxy).replace("num_workers=8", "num_workers=0"), names)
    names["client"].close()
    assert sorted(seen[:40]) == sorted(seen[40:]) == list(range(40))
    assert [proxy.orders.kept["resnet50", epoch, 0] for epoch in (0, 1)] == [seen[:40], seen[40:]]
    assert [(step["epoch"], step["position"]) for step in proxy.progress] == [(0, 40), (1, 40)]
