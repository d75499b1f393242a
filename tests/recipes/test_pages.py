"""The pages of docs/recipes. Their scripts are not run here."""

import re
import subprocess

import pytest

from tests.support.recipes import FOLDER, INDEX, REQUIREMENTS, read_recipes

CLIENTS = {
    "awscli",
    "boto3",
    "datasets",
    "duckdb",
    "lance",
    "litdata",
    "mosaicml-streaming",
    "obstore",
    "pandas",
    "polars",
    "pyarrow",
    "ray",
    "rclone",
    "s3fs",
    "s3torchconnector",
    "s5cmd",
    "safetensors",
    "tensorstore",
    "torchdata",
    "webdataset",
    "xarray",
}
RECIPES = read_recipes()
MOST_LINES = 45
MOST_COLUMNS = 110
OWN_ENVIRONMENT = {"mosaicml-streaming"}
"""Packages that the Makefile installs in an environment of their own, and that requirements.txt does not
name.
"""


def test_every_client_has_a_page():
    assert {recipe.name for recipe in RECIPES} >= CLIENTS


def test_every_page_has_a_row_in_the_index():
    rows = re.findall(r"^\| \[[^]]+\]\(([\w-]+)\.md\) \|", INDEX.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(recipe.name for recipe in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_page(recipe):
    assert recipe.title
    assert recipe.needs, "a page says what to set"
    assert recipe.packages, "a page says what to install"
    lines = recipe.script.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_COLUMNS
    assert "BUCKET" in recipe.script
    if recipe.language == "python":
        compile(recipe.script, f"{recipe.name}.md", "exec")
        assert "\nassert " in recipe.script or "\n    assert " in recipe.script, (
            "a script checks what it has read"
        )
        assert "print(" in recipe.script
    else:
        subprocess.run(["bash", "-n"], input=recipe.script, text=True, check=True)


def test_what_the_pages_install_is_installed_for_the_run():
    named = re.findall(r"^([\w-]+)", REQUIREMENTS.read_text(), re.MULTILINE)
    asked = {package for recipe in RECIPES if not recipe.untested for package in recipe.packages}
    assert asked - OWN_ENVIRONMENT == set(named)


def test_no_page_names_a_host():
    ours = re.compile(r"127\.0\.0\.1|localhost|(.+\.)?example\.\w+")
    for path in FOLDER.iterdir():
        hosts = re.findall(r"https?://([\w.-]+)", path.read_text())
        assert [host for host in hosts if not ours.fullmatch(host)] == [], path
