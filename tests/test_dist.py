"""``.ci/dist.py``, which prepares a publication: metadata and links of the files for an index of packages."""

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "SECURITY.md", "CHANGELOG.md")
BUILD = """
import sys
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
print(*SdistBuilder(sys.argv[1]).build(directory=sys.argv[1]))
print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[1], versions=["standard"]))
"""


@pytest.fixture(scope="module")
def dist():
    spec = importlib.util.spec_from_file_location("dist", ROOT / ".ci" / "dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path):
    """Return a tree with the proxy's documents and its build settings, but without its code."""
    (tmp_path / "tree" / "shadeproxy").mkdir(parents=True)
    (tmp_path / "tree" / "shadeproxy" / "__init__.py").touch()
    for name in (*DOCUMENTS, "LICENSE", "pyproject.toml", "hatch_build.py"):
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


def packed(project):
    """Build the published project. Return the documents in its sdist, and the metadata of its wheel."""
    command = [sys.executable, "-c", BUILD, str(project)]
    environment = os.environ | {"SHADEPROXY_PURE": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    sdist, wheel = ended.stdout.split()
    with tarfile.open(sdist) as archive:
        texts = {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()
            for member in archive.getmembers()
            if member.name.endswith(".md")
        }
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return texts, email.message_from_bytes(archive.read(name))


def test_the_packages_name_the_address_where_security_says_it_is(dist, project):
    dist.publish(project, "https://host/p", "Ada L <ada@host>")
    texts, metadata = packed(project)
    told = " ".join(texts["SECURITY.md"].split())
    assert "Write in private, not in a public issue, to Ada L <ada@host>. An installed package names" in told
    assert "contact -->" not in told
    assert "names no address" not in told
    (field,) = re.findall(r'metadata\("shadeproxy"\)\["([\w-]+)"\]', told)
    assert metadata[field] == "Ada L <ada@host>"


def test_a_checkout_says_where_the_address_comes_from(dist, project):
    dist.publish(project, "", "")
    told = " ".join((project / "SECURITY.md").read_text().split())
    assert "The source names no address: the builder of packages sets it as `SHADEPROXY_MAINTAINER`" in told


def test_a_security_file_without_the_place_of_the_address_ends_the_build(dist, project):
    (project / "SECURITY.md").write_text("# Security\n")
    with pytest.raises(SystemExit, match=r"SECURITY\.md: the place of the address is not marked"):
        dist.publish(project, "", "Ada L <ada@host>")


@pytest.mark.parametrize("url", ["https://host/p", ""])
def test_no_document_of_a_package_links_to_a_file_that_its_reader_lacks(dist, project, url):
    dist.publish(project, url, "")
    texts, _ = packed(project)
    assert texts.keys() == set(DOCUMENTS)
    links = {link for text in texts.values() for link in re.findall(r"\]\(([^)#][^)]*)\)", text)}
    assert links
    assert [link for link in links if not link.startswith(("https://", "http://"))] == []
    assert ("https://host/p/docs/security.md" in links) == bool(url)


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
