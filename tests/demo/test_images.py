import io

import numpy as np
from PIL import Image

from shadeproxy.demo.images import Photographer, decode, held_out


def test_a_photo_is_a_function_of_seed_split_and_number():
    one, other = Photographer("train"), Photographer("train")
    assert list(one.shoot(300)) == [other.take(number) for number in range(300)]
    assert one.take(5).data != Photographer("train", seed=1).take(5).data
    assert one.take(5).data != Photographer("test").take(5).data


def test_the_same_digit_is_seen_anew_each_time():
    photographer = Photographer("train")
    again = len(photographer.sources)
    first, second = photographer.take(3), photographer.take(3 + again)
    assert first.label == second.label
    assert first.data != second.data


def test_no_source_digit_is_in_both_splits():
    train, test = Photographer("train"), Photographer("test")
    # The two splits must not share a source image. Shared pixels would be a leak, even under two different
    # numbers.
    assert not {digit.tobytes() for digit in train.sources} & {digit.tobytes() for digit in test.sources}
    assert len(train.sources) + len(test.sources) == 1797


def test_objects_are_png_of_a_few_kib_with_the_label_in_the_key():
    photo = Photographer("train").take(17)
    assert Image.open(io.BytesIO(photo.data)).format == "PNG"
    assert 4096 < len(photo.data) < 8192
    assert photo.key == f"train/{photo.label}/00017.png"


def test_decode_gives_what_the_model_wants():
    photo = Photographer("train").take(17)
    image, label, size_bytes = decode(photo.data, f"somewhere/{photo.key}")
    assert image.shape == (1, 24, 24)
    assert image.dtype == np.float32
    assert -1 <= image.min() < image.max() <= 1
    assert (label, size_bytes) == (photo.label, len(photo.data))


def test_held_out_digits_come_decoded_with_their_labels():
    images, labels = held_out(20)
    assert images.shape == (20, 1, 24, 24)
    assert labels.tolist() == Photographer("test").labels[:20].tolist()
