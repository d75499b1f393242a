"""``.ci/dist.py``: metadata and links of the files for an index of packages."""

import importlib.util
import shutil
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def dist():
    spec = importlib.util.spec_from_file_location("dist", ROOT / ".ci" / "dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path):
    """Return a copy of the README and the settings of the proxy."""
    (tmp_path / "tree").mkdir()
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    return tmp_path / "tree"


def test_links_to_files_get_the_address_of_the_repository(dist):
    text = "[a](docs/a.md#b), [up](../docs/c.md), [out](https://other/x), [here](#there)"
    assert dist.absolute(text, "https://host/p/", "sdk/") == (
        "[a](https://host/p/sdk/docs/a.md#b), [up](https://host/p/docs/c.md), [out](https://other/x),"
        " [here](#there)"
    )


def test_without_an_address_links_to_files_are_plain_text(dist):
    assert dist.absolute("[a](docs/a.md) [out](https://other/x)", "", "") == "a [out](https://other/x)"


def test_the_metadata_name_the_address_and_the_maintainer(dist, project):
    dist.publish(project, "https://host/p", "Ada L <ada@host>")
    settings = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert settings["urls"] == {"Source": "https://host/p", "Changelog": "https://host/p/CHANGELOG.md"}
    assert settings["maintainers"] == [{"name": "Ada L", "email": "ada@host"}]
    assert "](docs/" not in (project / "README.md").read_text()
    assert "](https://host/p/docs/semantics.md)" in (project / "README.md").read_text()


def test_a_checkout_invents_neither_address_nor_maintainer(dist, project):
    dist.publish(project, "", "")
    settings = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert not settings.keys() & {"urls", "maintainers", "authors"}


def test_a_maintainer_without_an_address_ends_the_build(dist, project):
    with pytest.raises(SystemExit, match="SHADEPROXY_MAINTAINER 'Ada': write it as 'Name <address>'"):
        dist.publish(project, "", "Ada")


def test_each_distribution_carries_the_same_license_and_supports_the_same_pythons():
    licenses = {(ROOT / name / "LICENSE").read_bytes() for name in (".", "sdk", "bench")}
    assert len(licenses) == 1
    assert b"Apache License" in licenses.pop()
    found = [
        tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        for name in (".", "sdk", "bench")
    ]
    assert {one["license"] for one in found} == {"Apache-2.0"}
    pythons = [{text for text in one["classifiers"] if " :: 3." in text} for one in found]
    assert pythons[0] == pythons[1] == pythons[2]


def test_wheels_are_built_for_each_python_that_the_metadata_name():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = [text.rpartition(" :: ")[2] for text in settings["project"]["classifiers"] if " :: 3." in text]
    built = [f"cp{one.replace('.', '')}-*" for one in named]
    assert "cp314-*" in built
    assert settings["tool"]["cibuildwheel"]["build"] == built
