"""Examples of JSON bodies, by call, for /openapi.json. A new proxy accepts all of them in this order."""

from typing import Any

EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("PUT", "/v1/datasets/{dataset}"): {"bucket": "train", "prefix": "imagenet/"},
    ("PUT", "/v1/jobs/{job}"): {"dataset": "imagenet", "world_size": 1, "weight": 1.0},
    ("POST", "/v1/jobs/{job}/scores"): {"keys": {"train/imagenet/0": 0.7, "train/imagenet/1": 2.5}},
    ("POST", "/v1/jobs/{job}/epochs/{epoch}/scores"): {"mean_loss": 1.25},
    ("PUT", "/v1/jobs/{job}/epochs/{epoch}/order"): {"ids": [1, 0]},
    ("POST", "/v1/jobs/{job}/progress"): {"epoch": 0, "rank": 0, "position": 2, "stall_s": 0.25},
    ("POST", "/v1/batch"): {"dataset": "imagenet", "ids": [0, 1]},
    ("POST", "/v1/locate"): {"dataset": "imagenet", "ids": [0, 1]},
    ("POST", "/v1/pin"): {"uri": "s3://train/imagenet/"},
    ("POST", "/v1/unpin"): {"uri": "s3://train/imagenet/"},
    ("POST", "/v1/warm"): {"uri": "s3://train/imagenet/", "dry_run": True},
    ("POST", "/v1/purge"): {"uri": "s3://train/imagenet/", "dry_run": True},
    ("PUT", "/v1/log-level"): {"level": "info"},
}
