"""Two ranks train through one proxy (DistributedDataParallel, gloo). The test kills one of them, and both
resume.
"""

import json
import os
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.support.copied import TRAINING, original

SAMPLES = 42  # no multiple of ranks times batch size, so the last batch of an epoch is short
TRAIN = Path(__file__).with_name("train_rank.py")


def train(proxy, directory: Path, mode: str, turn: int, *, die: str = "") -> list[int]:
    """Run both ranks to the end, and return their exit codes. A rank resumes from its checkpoint if there is
    one.
    """
    ranks = []
    for rank in range(2):
        command = [str(TRAIN), "--rank", str(rank), "--control", proxy.control]
        command += ["--mode", mode, "--directory", str(directory)]
        command += ["--meeting", str(directory / f"meeting{turn}"), "--die", die if rank else ""]
        with (directory / f"log{turn}-{rank}").open("wb") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            streams = {"stdout": log.fileno(), "stderr": log.fileno()}
            ranks.append(original(TRAINING).start(command, **streams, environment=environment))
    try:
        return [rank.wait(120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def steps(directory: Path, rank: int, turn: int) -> list[dict]:
    lines = (directory / f"rank{rank}" / f"steps{turn}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["uniform", "importance"])
def test_a_killed_rank_resumes_at_the_same_sample(serve, bucket_directory, tmp_path, mode):
    for number in range(SAMPLES):
        (bucket_directory / "data" / f"{number:03d}").write_bytes(os.urandom(2000))
    proxy = serve(origin__kind="file", origin__path=str(bucket_directory))

    # Rank 1 dies two steps after its second checkpoint in epoch 1 (steps 7 to 12). Rank 0 then fails, because
    # its partner is gone.
    codes = train(proxy, tmp_path, mode, 0, die="1:11")
    assert codes[1] == -signal.SIGKILL
    assert codes[0] != 0
    codes = train(proxy, tmp_path, mode, 1)
    assert codes == [0, 0], [log.read_text() for log in tmp_path.glob("log1-*")]

    whole: list[list[dict]] = []
    for rank in range(2):
        before, after = steps(tmp_path, rank, 0), steps(tmp_path, rank, 1)
        assert after[0]["step"] == 10  # The last checkpoint was written after step 9.
        again = {line["step"]: line for line in after}
        repeated = [line for line in before if line["step"] in again]
        assert rank == 0 or len(repeated) == 2
        assert repeated == [again[line["step"]] for line in repeated]
        whole.append([line for line in before if line["step"] < 10] + after)

    for epoch in range(3):
        parts = [[line["ids"] for line in rank if line["epoch"] == epoch] for rank in whole]
        assert [len(batch) for batch in parts[0]] == [len(batch) for batch in parts[1]] == [4] * 5 + [1]
        read = [sample for part in parts for batch in part for sample in batch]
        if mode == "uniform" or epoch == 0:
            assert sorted(read) == list(range(SAMPLES))
        else:
            assert len(set(read)) < SAMPLES
    ends = [json.loads((tmp_path / f"rank{rank}" / "end.json").read_text()) for rank in range(2)]
    # Both ranks have the same model and draw, so each sample has the same correction at both.
    assert ends[0] == ends[1]
    order = proxy.get("/v1/jobs/ddp")["order"]
    assert order["believed"]
    # Every read was announced near the job's place, except reads of the killed run after its last checkpoint.
    assert order["found"] > 2 * (order["surprises"] + order["missed"])
    with urllib.request.urlopen(f"{proxy.control}/v1/jobs/ddp/scores", timeout=10) as answer:
        scores = np.frombuffer(answer.read(), "<f4")
    assert np.isfinite(scores).all()  # The scores that both ranks reported are on one scoreboard.
    assert len(scores) == SAMPLES
