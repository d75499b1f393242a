"""The demo's dataset: "photographs" of scikit-learn's digits, as PNG images. They are made from a seed, so
every run reads the same bytes.

Laws: an image is a pure function of (seed, split, number); neither order nor threads change it. No source
digit is in both splits, so accuracy is measured on digits that the model was never trained on. Noise makes a
PNG about 6 KiB long, so that a cache's overhead for each record is small in comparison.
"""

import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shadeproxy.demo.processes import held

SIDE = 96
"""Height and width of an image, in pixels."""
SHRINK = 4
"""Factor by which height and width are reduced before the model sees an image."""
TEST_SHARE = 0.2

Split = Literal["train", "test"]
_SPLITS: tuple[Split, ...] = ("train", "test")
_THREADS = 2
_CHUNK = 256


class Photo(NamedTuple):
    """One photo, which becomes one object. ``data``: a grayscale PNG of SIDE x SIDE pixels. ``key``: the
    object's key, whose last folder is the label.
    """

    key: str
    label: int
    data: bytes


class Photographer:
    """Makes the photos of one split from the source digits of that split."""

    def __init__(self, split: Split, *, seed: int = 0) -> None:
        # Python drops exceptions in the callbacks of an import's locks, so a signal would be lost there.
        with held():
            from sklearn.datasets import load_digits  # noqa: PLC0415  takes a second, and training only decodes

        digits = load_digits()
        cut = round(len(digits.target) * (1 - TEST_SHARE))
        chosen = slice(None, cut) if split == "train" else slice(cut, None)
        self.split = split
        self.sources: NDArray[np.uint8] = (digits.images[chosen] * 15).astype(np.uint8)
        self.labels: NDArray[np.int64] = digits.target[chosen].astype(np.int64)
        self._seed = (seed, _SPLITS.index(split))

    def take(self, number: int) -> Photo:
        """Make photo ``number`` from the source digit ``number`` modulo the count of digits. Each photo of a
        digit has another position and light.
        """
        source = number % len(self.sources)
        label = int(self.labels[source])
        pixels = _photograph(self.sources[source], np.random.default_rng([*self._seed, number]))
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return Photo(f"{self.split}/{label}/{number:05d}.png", label, file.getvalue())

    def shoot(self, count: int) -> Iterator[Photo]:
        """Make the photos 0 to ``count`` - 1, in order. Compression and resampling run on threads."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="photo") as pool:
            for start in range(0, count, _CHUNK):
                yield from pool.map(self.take, range(start, min(start + _CHUNK, count)))


def decode(data: bytes, key: str) -> tuple[NDArray[np.float32], int, int]:
    """Decode a PNG for the model. Return three things: the image, float32 (1, SIDE / SHRINK, SIDE / SHRINK)
    in [-1, 1]; the label, which is taken from the key; and the size of the PNG in bytes.
    """
    pixels = np.asarray(Image.open(io.BytesIO(data)).reduce(SHRINK), dtype=np.float32)
    return pixels[np.newaxis] / 127.5 - 1.0, int(key.split("/")[-2]), len(data)


def timed_decode(data: bytes, key: str) -> tuple[NDArray[np.float32], int, int, float]:
    """Return the result of ``decode``, and the CPU seconds that decoding took."""
    started_s = time.thread_time()
    image, label, size_bytes = decode(data, key)
    return image, label, size_bytes, time.thread_time() - started_s


def held_out(count: int, *, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return ``count`` decoded photos of digits that are used only for testing, float32 (n, 1, h, w), and
    their labels, int64 (n,).
    """
    photos = list(Photographer("test", seed=seed).shoot(count))
    images = np.stack([decode(photo.data, photo.key)[0] for photo in photos])
    return images, np.array([photo.label for photo in photos], dtype=np.int64)


def _photograph(source: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return ``source`` (8, 8) turned, moved, scaled and lit at random, with noise: uint8 (SIDE, SIDE)."""
    turn = np.deg2rad(generator.uniform(-25, 25))
    pixels_per_cell = SIDE / 8 * generator.uniform(0.7, 1.05)
    cos, sin = np.cos(turn) / pixels_per_cell, np.sin(turn) / pixels_per_cell
    x, y = SIDE * (0.5 + generator.uniform(-0.12, 0.12, 2))
    to_source = (cos, sin, 4 - cos * x - sin * y, -sin, cos, 4 + sin * x - cos * y)
    seen = Image.fromarray(source).transform(
        (SIDE, SIDE), Image.Transform.AFFINE, to_source, resample=Image.Resampling.BICUBIC
    )
    light, shade = generator.uniform(0.4, 1.0), generator.uniform(0, 50)
    grain = generator.standard_normal((SIDE, SIDE), dtype=np.float32) * 6
    lit = np.asarray(seen, dtype=np.float32) * light + shade + grain
    pixels: NDArray[np.uint8] = np.clip(lit, 0, 255).astype(np.uint8)
    return pixels
