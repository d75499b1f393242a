"""The training loop's side of ShadeProxy: datasets, samplers, and jobs that report scores.

Use ``import shadeproxy_sdk as shade``. Importing the package does not import torch. The first use of a name
that needs torch imports it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shadeproxy_sdk.client import Client
from shadeproxy_sdk.delivery import JobStats
from shadeproxy_sdk.errors import ConfigError, ControlError, ReadError, ShadeError
from shadeproxy_sdk.job import Job
from shadeproxy_sdk.manifest import Entry, Manifest
from shadeproxy_sdk.origin import Credentials, Origin
from shadeproxy_sdk.shards.mds import mds_manifest
from shadeproxy_sdk.shards.tar import tar_manifest, tar_members
from shadeproxy_sdk.shards.tfrecord import tfrecord_manifest
from shadeproxy_sdk.stall import StallMeter

if TYPE_CHECKING:
    from shadeproxy_sdk.announced import Announced, announce
    from shadeproxy_sdk.dataset import S3Dataset
    from shadeproxy_sdk.sampler import ShadeSampler
    from shadeproxy_sdk.tensors import as_tensor, collate

__version__ = "0.1.0"
__all__ = [
    "Announced",
    "Client",
    "ConfigError",
    "ControlError",
    "Credentials",
    "Entry",
    "Job",
    "JobStats",
    "Manifest",
    "Origin",
    "ReadError",
    "S3Dataset",
    "ShadeError",
    "ShadeSampler",
    "StallMeter",
    "announce",
    "as_tensor",
    "collate",
    "mds_manifest",
    "tar_manifest",
    "tar_members",
    "tfrecord_manifest",
]
_NEEDS_TORCH = {
    "Announced": "announced",
    "S3Dataset": "dataset",
    "ShadeSampler": "sampler",
    "announce": "announced",
    "as_tensor": "tensors",
    "collate": "tensors",
}


def _load(name: str) -> Any:
    module = _NEEDS_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(f"{name} needs PyTorch: pip install torch") from None
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # A type checker must not see __getattr__: it would accept every name of this module.
    __getattr__ = _load
