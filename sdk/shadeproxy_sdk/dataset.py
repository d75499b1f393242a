"""A map-style torch Dataset over a manifest. It turns sample ids into decoded samples, a whole batch at a
time.

Laws: a sample is complete, or reading it raises an error. A sample that is twice in a batch is fetched once
and decoded twice. The dataset holds only settings, so it can be forked and pickled into workers; its Client
has the threads and sockets.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset

from shadeproxy_sdk.client import Client
from shadeproxy_sdk.errors import ConfigError
from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.tensors import as_tensor, fetch_samples


class S3Dataset(Dataset[tuple[Any, ...]]):
    """A torch Dataset whose samples are tuples ``(*decoded, sample_id)``.

    ``bucket``, ``prefix``: every object under the prefix is a sample; ids follow the order of the keys.
    ``manifest``: the samples, instead of bucket and prefix. ``decode``: turns the object's bytes into a
    value, or into a tuple of values that precede the id. A function with two required positional parameters
    is called with ``(data, key)``, for labels in the key; any other with ``(data)``. If ``decode`` is None,
    the value is the sample's bytes. If it is ``shade.as_tensor``, the values are uint8 tensors that lie side
    by side, and ``shade.collate`` batches them without a copy. ``decode`` runs in the worker's own thread,
    one sample at a time. ``views``: True gives ``decode`` a writable memoryview of the sample within the
    batch's memory instead of ``bytes``. That saves a copy, but keeping one view keeps the whole batch in
    memory. ``name``: the name under which the proxy registers the dataset; by default it is made from bucket
    and prefix.

    ``reads_at_once``: number of samples of one batch that are read from the origin at the same time;
    ``shadeproxy plan`` uses it.

    Raises ConfigError, ControlError, and ReadError when neither proxy nor origin can list the objects.
    """

    reads_at_once = 32  # POST /v1/batch reads this many samples at a time.

    def __init__(
        self,
        client: Client,
        *,
        bucket: str | None = None,
        prefix: str = "",
        decode: Callable[..., Any] | None = None,
        manifest: Manifest | None = None,
        name: str | None = None,
        views: bool = False,
    ) -> None:
        if (bucket is None) == (manifest is None):
            raise ConfigError("S3Dataset needs either bucket=... (and prefix=...) or manifest=...")
        if manifest is None:
            assert bucket is not None
            manifest = client.manifest(bucket=bucket, prefix=prefix, name=name)
        if not isinstance(manifest, Manifest):
            raise ConfigError(
                f"manifest is a {type(manifest).__name__}: give a Manifest, as client.manifest(...)"
            )
        if decode is not None and not callable(decode):
            raise ConfigError(f"decode is a {type(decode).__name__}: give a function of the sample's bytes")
        self.manifest = manifest
        self._client = client
        self._decode = decode
        self._views = views
        self._wants_key = decode is not None and _required_parameters(decode) == 2

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return one sample. Raises ConfigError for an index that names several, IndexError, ReadError."""
        _check_index(index)
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[tuple[Any, ...]]:
        """Return the samples of one batch, in order. DataLoader calls this to fetch them together. Raises
        ReadError.
        """
        if hasattr(indices, "tolist"):  # A sampler may yield batches as arrays or tensors.
            indices = indices.tolist()
        if self._decode is as_tensor:
            return fetch_samples(self._client, self.manifest, indices)
        samples = self._client.views(self.manifest, indices)
        return [self._sample(index, data) for index, data in zip(indices, samples, strict=True)]

    def _sample(self, index: int, data: bytes | memoryview) -> tuple[Any, ...]:
        if self._views:
            data = data if isinstance(data, memoryview) else memoryview(bytearray(data))
        else:
            data = bytes(data)
        if self._decode is None:
            return data, index
        entry = self.manifest[index]
        try:
            value = self._decode(data, entry.key) if self._wants_key else self._decode(data)
        except Exception as error:
            error.add_note(f"while decoding sample {index}, {entry} ({len(data)} bytes)")
            raise
        return (*value, index) if isinstance(value, tuple) else (value, index)


def _check_index(index: Any) -> None:
    if isinstance(index, slice | list | tuple):
        raise ConfigError(
            f"index {index!r:.60}: give one sample id, or batch_sampler=... to the loader if a sampler names "
            "several"
        )


def _required_parameters(decode: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(decode).parameters.values()
    except ValueError:  # Some built-in functions have no signature.
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)
