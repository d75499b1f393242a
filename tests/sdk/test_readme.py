from pathlib import Path

import numpy as np
import torch

import shadeproxy_sdk as shade

README = Path(shade.__file__).parents[1] / "README.md"


def decode(data, key):
    return torch.from_numpy(np.array([len(data), data[0]], np.float32)), int(key.split("/")[1])


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
    (example,) = (part.split("```")[0] for part in README.read_text().split("```python\n")[1:])
    assert "http://127.0.0.1:9001" in example
    example = example.replace("http://127.0.0.1:9001", proxy.url)
    exec(example.replace("num_workers=8", "num_workers=0"), names)
    names["client"].close()
    assert sorted(proxy.scores["resnet50"]) == list(range(40))
    assert proxy.progress[-1]["position"] == 40
    assert names["sampler"].distinct_samples < 40
