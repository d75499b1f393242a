"""The errors for TOML files that users write."""

import msgspec
import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.plan.toml_file import load_toml


class Table(msgspec.Struct, forbid_unknown_fields=True):
    size: int


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"size = 'x'", "--option {path}: Expected `int`, got `str` - at `$.size`; such a file has size"),
        (b"other = 1", "--option {path}: Object contains unknown field `other`; such a file has size"),
        (b"size", "--option {path} is no TOML: "),
        (b"\xff", "--option {path}: it is no text"),
    ],
)
def test_a_fault_is_named_with_the_option_and_the_form(tmp_path, data, said):
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as error:
        load_toml(path, Table, option="--option", form="size")
    assert str(error.value).startswith(said.format(path=path))


def test_a_file_is_read_into_its_struct(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("size = 3")
    assert load_toml(path, Table, option="--option", form="size").size == 3
