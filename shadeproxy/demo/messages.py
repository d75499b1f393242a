"""The messages between the demo and its training processes. A training process reads one JSON object, its
plan, and writes JSON lines, its events.

Law: a training process only reports what it measures. It does not know which run of the demo it is.
"""

from typing import Literal

import msgspec

Mode = Literal["uniform", "importance", "shade"]


class ExistingServer(msgspec.Struct, frozen=True):
    """An S3 server that the demo did not start. Its keys come from the AWS variables of the environment."""

    endpoint: str
    region: str


class TrainingPlan(msgspec.Struct, frozen=True):
    """One training. ``control_url``: the control listener to read through, from which the training also takes
    the proxy's counters; None: read from ``origin``, without a proxy. ``test_file``: an .npz of held-out
    ``images`` and ``labels``. ``scores``: whether to report losses. ``meeting``: a file by which the
    ``world_size`` processes of the training find each other; None if there is one process.
    """

    control_url: str | None
    bucket: str
    prefix: str
    test_file: str
    mode: Mode = "uniform"
    scores: bool = False
    epochs: int = 3
    batch_size: int = 64
    workers: int = 2
    reads_per_worker: int = 10
    seed: int = 0
    origin: ExistingServer | None = None
    rank: int = 0
    world_size: int = 1
    meeting: str | None = None


class Counted(msgspec.Struct, frozen=True):
    """Growth of a server's counters (``GET /v1/stats``) during one epoch."""

    requests: int
    bytes: int
    hits_ram: int
    hits_disk: int
    hit_bytes: int
    origin_requests: int
    origin_bytes: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Progress of a training: ``done`` of ``total`` samples of ``epoch`` were trained."""

    epoch: int
    done: int
    total: int


class EpochDone(msgspec.Struct, frozen=True, tag="epoch"):
    """An epoch as the training process measured it. ``reads``, ``read_bytes``: what the loader read.
    ``decode_s``: CPU seconds of decoding, for each of the loader's processes. ``counted``: the server's
    counts; None if the training reads without a proxy. ``lan_*``: reads of samples that another proxy caches
    than the one that the loader calls.
    """

    epoch: int
    wall_s: float
    stall_s: float
    decode_s: float
    reads: int
    read_bytes: int
    distinct_samples: int
    accuracy: float
    counted: Counted | None
    lan_reads: int = 0
    lan_bytes: int = 0


Event = Step | EpochDone
