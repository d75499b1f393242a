"""The data sets: scikit-learn's digits in three forms (as they are, with wrong labels, with rare classes),
and photos of the digits.

Law: a data set is a pure function of its name and seed. Nothing of the test split is ever trained on, and the
test split has right labels and all classes. A sample is an object of 4 KiB or more, so that a cache's
overhead for a record stays small. The object's key contains the sample's label.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shadeproxy.demo import images
from shadeproxy.demo.model import SmallNet

_WRONG_LABELS = 0.2
_RARE_SHARE = 0.1
_RARE_CLASSES = (5, 6, 7, 8, 9)
_SCALE = 8
_TEST_SHARE = 0.2
_TEST_PHOTOS = 1500

Decode = Callable[[bytes, str], tuple[NDArray[np.float32], int]]


class DataSet(NamedTuple):
    """One data set. ``words``: its description in the report. ``objects``: key and body of each sample.
    ``test``: images and labels of the test split.
    """

    name: str
    words: str
    objects: list[tuple[str, bytes]]
    decode: Decode
    test: tuple[torch.Tensor, torch.Tensor]
    model: Callable[[], nn.Module]

    @property
    def bytes(self) -> int:
        return sum(len(body) for _, body in self.objects)

    def write(self, bucket: Path) -> None:
        """Write the objects as files of the bucket at ``bucket``."""
        for key, body in self.objects:
            path = bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)


def data_sets(*, photos: int) -> Iterator[DataSet]:
    """Yield the four data sets. ``photos``: number of samples of the last one, the photos."""
    yield _digits("digits", "scikit-learn's digits")
    yield _digits("noisy", "digits, a fifth of the labels wrong", wrong=_WRONG_LABELS)
    yield _digits("imbalanced", "digits, classes 5 to 9 with a tenth of their samples", rare=_RARE_SHARE)
    shot = images.Photographer("train").shoot(photos)
    test_images, test_labels = images.held_out(_TEST_PHOTOS)
    yield DataSet(
        "photos",
        f"{photos:,} photos of the digits (turned, moved, lit, with grain), 6 KB PNG",
        [(f"photos/{photo.key}", photo.data) for photo in shot],
        _decode_photo,
        (torch.from_numpy(test_images), torch.from_numpy(test_labels)),
        SmallNet,
    )


def _digits(name: str, words: str, *, wrong: float = 0.0, rare: float = 1.0) -> DataSet:
    from sklearn.datasets import load_digits  # noqa: PLC0415  takes half a second, and only the data need it

    digits, drawn = load_digits(), np.random.default_rng(0)
    cut = round(len(digits.target) * (1 - _TEST_SHARE))
    pixels = (digits.images * 15).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    kept = np.ones(cut, dtype=np.bool_)
    if rare < 1:
        kept = ~np.isin(labels[:cut], _RARE_CLASSES) | (drawn.random(cut) < rare)
    told = labels[:cut].copy()
    mislabelled = drawn.random(cut) < wrong
    told[mislabelled] = (told[mislabelled] + drawn.integers(1, 10, int(mislabelled.sum()))) % 10
    objects = [
        (
            f"{name}/{told[number]}/{number:05d}",
            np.kron(pixels[number], np.ones((_SCALE, _SCALE), np.uint8)).tobytes(),
        )
        for number in np.flatnonzero(kept).tolist()
    ]
    test = torch.from_numpy(_features(pixels[cut:])), torch.from_numpy(labels[cut:])
    return DataSet(
        name, f"{words}, {len(objects):,} samples of 4 KiB", objects, _decode_digit, test, _perceptron
    )


def _decode_digit(data: bytes, key: str) -> tuple[NDArray[np.float32], int]:
    side = 8 * _SCALE
    pixels = np.frombuffer(data, np.uint8).reshape(side, side)[::_SCALE, ::_SCALE]
    return _features(pixels[np.newaxis])[0], int(key.split("/")[-2])


def _decode_photo(data: bytes, key: str) -> tuple[NDArray[np.float32], int]:
    pixels, label, _ = images.decode(data, key)
    return pixels, label


def _features(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / np.float32(120) - np.float32(1)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
