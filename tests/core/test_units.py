import re
from pathlib import Path

import pytest

from shadeproxy.core.units import format_count, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        (5, 5),
        ("12", 12),
        ("1 KiB", 1024),
        ("1 kB", 1000),
        ("8GiB", 8 << 30),
        ("1.5 MiB", 3 << 19),
        ("2M", 2 << 20),
        ("2Mi", 2 << 20),
        ("1Gi", 1 << 30),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("letter", "KMGTP")
def test_a_size_is_in_powers_of_1024_unless_its_unit_ends_in_b_without_i(letter):
    power = "KMGTP".index(letter) + 1
    for form in (" {}iB", "{}i", "{}", " {}ib"):
        assert parse_size(f"8{form.format(letter)}") == 8 * 1024**power
    assert parse_size(f"8 {letter}B") == parse_size(f"8{letter.lower()}B") == 8 * 1000**power


def test_the_sizes_that_texts_name_are_what_they_say():
    with pytest.raises(ValueError, match="is not a size") as refused:
        parse_size("lots")
    settings = Path(__file__).parents[2] / "config.toml"
    (line,) = [one for one in settings.read_text().splitlines() if "Sizes:" in one]
    for text in (str(refused.value), line):
        binary, decimal = text.partition("1024^3")[::2]
        for part, base in ((binary, 1024), (decimal, 1000)):
            named = re.findall(r'"(8 ?\w+)"', part)
            assert named
            assert {parse_size(one) for one in named} == {8 * base**3}
    assert set(re.findall(r'"8 ?(\w+)"', line)) == {"GiB", "Gi", "G", "GB"}


@pytest.mark.parametrize(
    ("text", "seconds"), [("250 ms", 0.25), ("2 s", 2), (3, 3), ("5 min", 300), ("1 h", 3600), ("7d", 604800)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "-1 GiB", "1 XB", "1,5 GiB", "9" * 400])
def test_a_bad_size_says_how_to_write_it(text):
    with pytest.raises(ValueError, match='write it as "8 GiB"'):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "soon", "2 weeks", "-1 s", "9" * 400])
def test_a_bad_time_says_how_to_write_it(text):
    with pytest.raises(ValueError, match='write it as "250 ms"'):
        parse_duration(text)


def test_format():
    assert [format_size(n) for n in (0, 1023, 1536, 8 << 30)] == ["0 B", "1023 B", "1.5 KiB", "8.0 GiB"]


@pytest.mark.parametrize(
    ("count", "form", "text"),
    [
        (0, ",", "0 epochs"),
        (1, ",", "1 epoch"),
        (2, ",", "2 epochs"),
        (1200, ",", "1,200 epochs"),
        (1.00001, ".4g", "1 epoch"),
        (1.01, ".4g", "1.01 epochs"),
        (0.6, ",.0f", "1 epoch"),
    ],
)
def test_one_is_singular(count, form, text):
    assert format_count(count, "epoch", form) == text
