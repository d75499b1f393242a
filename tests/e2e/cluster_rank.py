"""One rank of a DistributedDataParallel training in which each rank has a proxy of its own.
test_cluster_training.py starts four ranks.

The rank writes files for the test into its own directory. They have the ids of each step, and at the end the
draws, the scores and the model. After the step given by ``--pause`` it waits until the test lets it go on.
"""

import argparse
import base64
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (as everybody calls it)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import shadeproxy_sdk as shade

EPOCHS = 3
BATCH_SIZE = 6
EPOCH_PAUSE_S = 1.0
"""Seconds of pause before each epoch. Proxies share scores within half a second, so at the next draw all have
the latest scores. Epochs of a real training last longer than the pause.
"""
PAUSED, GO_ON = "paused", "go-on"


def body_of(key):
    """Return the bytes of an object. Each object has other bytes, so the reader sees whether it got the right
    ones.
    """
    return f"{key} ".encode() * 400


def decode(data, key):
    assert data == body_of(key), f"wrong bytes of {key}: {data[:20]!r}"
    number = int(key)
    return torch.tensor([number % 7, number % 5, number % 3, 1.0]), number % 2


def pause(directory):
    (directory / PAUSED).touch()
    while not (directory / GO_ON).exists():
        time.sleep(0.01)


def wait_for_proxy(client):
    """Wait until the proxy answers. Without an answer at the draw of an epoch, a rank would draw from its own
    scores only.
    """
    end_s = time.monotonic() + 60
    while True:
        try:
            return client.call("GET", "/readyz")
        except shade.ShadeError:
            assert time.monotonic() < end_s, "the proxy does not answer"
            time.sleep(0.05)


def flush(job):
    """Deliver all reports, including those that wait because the proxy gave no answer shortly before."""
    end_s = time.monotonic() + 30
    while not job.flush():
        assert time.monotonic() < end_s, "the proxy takes no reports"
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--control")
    parser.add_argument("--mode")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--pause", default="")  # "1:5" means: pause after step 5 of epoch 1
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    meeting = (args.directory / "meeting").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=args.rank, world_size=args.world_size)
    # The client knows no origin, so every byte comes from a proxy of the cluster.
    client = shade.Client(args.control, retry_s=0.2)
    data = shade.S3Dataset(client, bucket="train", decode=decode)
    job = client.job(
        args.mode, dataset=data.manifest, rank=args.rank, world_size=args.world_size, interval_s=0.05
    )
    sampler = shade.ShadeSampler(job, args.mode, seed=3, batch_size=BATCH_SIZE, epochs=EPOCHS)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler, collate_fn=shade.collate)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    directory = args.directory / f"rank{args.rank}"
    directory.mkdir()
    steps, announced, draws, corrections = [], [], [], []
    for epoch in range(EPOCHS):
        time.sleep(EPOCH_PAUSE_S)
        wait_for_proxy(client)
        sampler.set_epoch(epoch)
        steps.append([])
        announced.append(sampler.order(epoch).tolist())
        for values, labels, ids in job.timed(loader):
            losses = F.cross_entropy(model(values), labels, reduction="none")
            job.report(ids, losses)
            (losses * sampler.weight_of(ids)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps[epoch].append(ids.tolist())
            if args.pause == f"{epoch}:{len(steps[epoch])}":
                pause(directory)
        plan = sampler.state_dict().get("plans", {}).get(epoch)
        draws.append(None if plan is None else plan["ids"].tolist())
        corrections.append(sampler.weight_of(torch.arange(len(data))).tolist())
    flush(job)
    frozen = client.call("POST", f"/v1/jobs/{job.name}/epochs/{EPOCHS - 1}/scores", {"mean_loss": 1.0})
    end = {
        "steps": steps,
        "announced": announced,
        "draws": draws,
        "corrections": corrections,
        "frozen": base64.b64encode(frozen.body).decode(),
        "scores": job.scores_state()[0].tolist(),
        "parameters": [parameter.tolist() for parameter in model.parameters()],
        "job": job.name,
    }
    (directory / "end.json").write_text(json.dumps(end))
    dist.barrier()
    assert job.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
