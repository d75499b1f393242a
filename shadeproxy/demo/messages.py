"""The messages between the demo and its training processes. A training process receives one JSON object, its
plan. It writes its events as lines of JSON.

Law: a training process only reports its own measurements. It does not know the trainings with which it is
compared.
"""

from typing import Literal

import msgspec

Mode = Literal["uniform", "importance", "shade"]


class ExistingServer(msgspec.Struct, frozen=True):
    """An S3 server that the demo did not start. The keys for it come from the AWS variables of the
    environment.
    """

    endpoint: str
    region: str


class TrainingPlan(msgspec.Struct, frozen=True):
    """The plan of one training. ``control_url``: control listener of the proxy through which the training
    reads and from which it takes counters; None: read from ``origin``, without a proxy. ``test_file``: an
    .npz with the ``images`` and ``labels`` for testing. ``scores``: whether to report losses. ``meeting``: a
    file by which the ``world_size`` processes of the training find each other; None if there is only one
    process.
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
    """The growth of a server's counters (``GET /v1/stats``) during one epoch."""

    requests: int
    bytes: int
    hits_ram: int
    hits_disk: int
    coalesced: int
    hit_bytes: int
    origin_requests: int
    origin_bytes: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Progress of a training: it has trained on ``done`` of the ``total`` samples of ``epoch``."""

    epoch: int
    done: int
    total: int


class EpochDone(msgspec.Struct, frozen=True, tag="epoch"):
    """The measurements of one epoch. ``reads``, ``read_bytes``: the reads of the training's loader.
    ``decode_s``: CPU seconds of decoding, as a mean over the loader's processes. ``counted``: the server's
    counts; None if the training reads without a proxy. ``lan_*``: reads of samples that another proxy caches
    than the one that the training asks.
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
