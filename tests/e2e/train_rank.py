"""One rank of a DistributedDataParallel training through the proxy. test_training.py starts two ranks.

The rank writes files for the test into its own directory. They are a line of ids for each step, a checkpoint
every few steps, and its final state. After the step given by ``--die`` it kills itself with SIGKILL.
"""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (as everybody calls it)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import shadeproxy_sdk as shade

WORLD_SIZE = 2
EPOCHS = 3
BATCH_SIZE = 4
STEPS_PER_CHECKPOINT = 3


def decode(data, key):
    return torch.frombuffer(bytearray(data[:16]), dtype=torch.uint8).float() / 255, int(key) % 2


def save(path, value):
    torch.save(value, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--control")
    parser.add_argument("--mode")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--meeting", type=Path)
    parser.add_argument("--die", default="")  # "1:5" means: die after step 5 of epoch 1
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=args.meeting.as_uri(), rank=args.rank, world_size=WORLD_SIZE)
    client = shade.Client(args.control)
    data = shade.S3Dataset(client, bucket="data", decode=decode)
    job = client.job("ddp", dataset=data.manifest, rank=args.rank, world_size=WORLD_SIZE, interval_s=0.05)
    sampler = shade.ShadeSampler(job, args.mode, seed=3, batch_size=BATCH_SIZE, epochs=EPOCHS)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler, num_workers=1, collate_fn=shade.collate)
    model = DistributedDataParallel(torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    directory = args.directory / f"rank{args.rank}"
    directory.mkdir(exist_ok=True)
    checkpoint, step, weights = directory / "checkpoint.pt", 0, {}
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        sampler.load_state_dict(state["sampler"])
        step = state["step"]
    with (directory / f"steps{len(list(directory.glob('steps*')))}.jsonl").open("w") as log:
        for epoch in range(sampler.epoch, EPOCHS):
            sampler.set_epoch(epoch)
            for values, labels, ids in job.timed(loader):
                losses = F.cross_entropy(model(values), labels, reduction="none")
                job.report(ids, losses)
                (losses * sampler.weight_of(ids)).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                log.write(json.dumps({"step": step, "epoch": epoch, "ids": ids.tolist()}) + "\n")
                log.flush()
                if args.die == f"{epoch}:{step}":
                    os.kill(os.getpid(), signal.SIGKILL)
                if step % STEPS_PER_CHECKPOINT == 0:
                    state = {"model": model.state_dict(), "sampler": sampler.state_dict(), "step": step}
                    save(checkpoint, state)
            weights[epoch] = sampler.weight_of(torch.arange(len(data))).tolist()
    assert job.close()
    parameters = [parameter.tolist() for parameter in model.parameters()]
    dist.barrier()
    (directory / "end.json").write_text(json.dumps({"weights": weights, "parameters": parameters}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
