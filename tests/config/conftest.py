import os

import pytest

from shadeproxy.config import Settings
from shadeproxy.core.errors import ConfigError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in os.environ:
        if name.upper().startswith("SHADEPROXY"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a configuration file and returns its path."""

    def write(text):
        path = tmp_path / "config.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def refused(write):
    """Return a function ``refused(text, overrides)``. It returns the error text for a file with that text.
    "{file}" stands for the file's path.
    """

    def refused(text="", *overrides):
        path = write(text)
        with pytest.raises(ConfigError) as caught:
            Settings.load(path, overrides)
        return str(caught.value).replace(str(path), "{file}")

    return refused
