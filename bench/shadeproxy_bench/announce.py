"""The control calls of a job: register a data set and the job, announce an order, post scores."""

import urllib.request
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from shadeproxy_bench.objects import BUCKET, Piece
from shadeproxy_bench.server import Served

Order = NDArray[np.uint32]
Scores = NDArray[np.float32]

_TIMEOUT_S = 60.0


def register(ours: Served, pieces: Iterable[Piece], jobs: Iterable[str]) -> None:
    """Register the objects of ``pieces`` as samples 0, 1, ... of a data set that every job reads."""
    lines = [msgspec.json.encode({"bucket": BUCKET, "key": piece.path.split("/", 2)[2]}) for piece in pieces]
    _put(ours, "/v1/datasets/data", b"\n".join(lines), "application/jsonl")
    for job in jobs:
        _put(ours, f"/v1/jobs/{job}", b'{"dataset": "data"}', "application/json")


def put_order(ours: Served, job: str, epoch: int, order: Order) -> None:
    """Announce the order of one epoch of ``job``, whose only rank is 0."""
    path = f"/v1/jobs/{job}/epochs/{epoch}/order?rank=0"
    _put(ours, path, order.astype("<u4").tobytes(), "application/octet-stream")


def post_scores(ours: Served, job: str, scores: Scores) -> None:
    """Post ``scores`` for the samples 0, 1, ...; samples whose score is nan are left out."""
    ids = np.flatnonzero(~np.isnan(scores))
    columns = ids.astype("<u4").tobytes() + scores[ids].astype("<f4").tobytes()
    body = len(ids).to_bytes(4, "little") + columns
    _send(ours, "POST", f"/v1/jobs/{job}/scores", body, "application/vnd.shadeproxy.scores")


def _put(ours: Served, path: str, body: bytes, content_type: str) -> None:
    _send(ours, "PUT", path, body, content_type)


def _send(ours: Served, method: str, path: str, body: bytes, content_type: str) -> None:
    request = urllib.request.Request(
        ours.control_url + path, data=body, method=method, headers={"Content-Type": content_type}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
        pass
