"""The control calls of a job: register a dataset and the job, announce an order, post scores."""

import json
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from shadeproxy_bench.objects import BUCKET, Piece
from shadeproxy_bench.server import Served

Order = NDArray[np.uint32]
Scores = NDArray[np.float32]


def register(
    ours: Served,
    pieces: Iterable[Piece],
    jobs: Iterable[str],
    *,
    dataset: str = "data",
    needs: Mapping[str, float] = {},
) -> None:
    """Register the objects of ``pieces`` as samples 0, 1, ... of a dataset, and ``jobs`` that read it.
    ``needs``: further fields of PUT /v1/jobs.
    """
    lines = [msgspec.json.encode({"bucket": BUCKET, "key": piece.path.split("/", 2)[2]}) for piece in pieces]
    ours.call("PUT", f"/v1/datasets/{dataset}", b"\n".join(lines), "application/jsonl")
    for job in jobs:
        ours.call("PUT", f"/v1/jobs/{job}", json.dumps({"dataset": dataset, **needs}).encode())


def put_order(ours: Served, job: str, epoch: int, order: Order, *, rank: int = 0) -> None:
    """Announce the order in which one rank of ``job`` reads one epoch."""
    path = f"/v1/jobs/{job}/epochs/{epoch}/order?rank={rank}"
    ours.call("PUT", path, order.astype("<u4").tobytes(), "application/octet-stream")


def post_scores(ours: Served, job: str, scores: Scores) -> None:
    """Post the scores of samples: ``scores[n]`` is the score of sample n. Samples whose score is nan are left
    out.
    """
    ids = np.flatnonzero(~np.isnan(scores))
    columns = ids.astype("<u4").tobytes() + scores[ids].astype("<f4").tobytes()
    body = len(ids).to_bytes(4, "little") + columns
    ours.call("POST", f"/v1/jobs/{job}/scores", body, "application/vnd.shadeproxy.scores")
