"""The messages between the demo and its training processes: one JSON object in, JSON lines out.

Law: a training process only reports what it measures; the demo alone knows what a run's name means.
"""

from typing import Literal

import msgspec

Mode = Literal["uniform", "importance", "shade"]


class ExistingServer(msgspec.Struct, frozen=True):
    """An S3 server that the demo did not start. Its keys come from the AWS variables of the environment."""

    endpoint: str
    region: str


class TrainingPlan(msgspec.Struct, frozen=True):
    """One training. ``control_url``: the server to ask for data and counters; None: read ``origin`` without a
    proxy. ``test_file``: .npz of held-out ``images`` and ``labels``. ``scores``: whether to report losses.
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
    """Counts of a server's ``GET /v1/stats`` during one epoch."""

    requests: int
    bytes: int
    hits_ram: int
    hits_disk: int
    hit_bytes: int
    origin_requests: int
    origin_bytes: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Progress: ``done`` of ``total`` samples of ``epoch`` were trained."""

    epoch: int
    done: int
    total: int


class EpochDone(msgspec.Struct, frozen=True, tag="epoch"):
    """An epoch as the training process measured it: times in seconds, ``reads`` and ``read_bytes`` of its
    workers. ``counted``: None if the demo started no server that counts.
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
