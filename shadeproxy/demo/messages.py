"""What the demo and its training processes say to each other: one JSON object in, JSON lines out.

Law: a training process reports what it measured; what a run's name means is decided by the demo alone.
"""

from typing import Literal

import msgspec

Mode = Literal["uniform", "importance", "shade"]


class ExistingServer(msgspec.Struct, frozen=True):
    """An S3 server that is not the demo's; keys come from the AWS variables of the environment."""

    endpoint: str
    region: str


class TrainingPlan(msgspec.Struct, frozen=True):
    """One training. ``control_url``: whom to ask for data and counters; None: read ``origin`` without a
    proxy. ``test_file``: .npz of held-out ``images`` and ``labels``. ``scores``: report losses.
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


class Counted(msgspec.Struct, frozen=True):
    """What a server's ``GET /v1/stats`` counted during an epoch."""

    requests: int
    bytes: int
    hits_ram: int
    hits_disk: int
    hit_bytes: int
    origin_requests: int
    origin_bytes: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    """``done`` of ``total`` samples of ``epoch`` are trained."""

    epoch: int
    done: int
    total: int


class EpochDone(msgspec.Struct, frozen=True, tag="epoch"):
    """An epoch as the training process saw it: times in seconds, ``reads`` and ``read_bytes`` as its workers
    made them. ``counted``: None where there was no server of ours to ask.
    """

    epoch: int
    wall_s: float
    stall_s: float
    reads: int
    read_bytes: int
    distinct_samples: int
    accuracy: float
    counted: Counted | None


Event = Step | EpochDone
