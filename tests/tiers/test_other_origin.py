"""A cache of another origin is never deleted. A start refuses it and names both origins, or sets it aside on
request.
"""

import json

import pytest

from shadeproxy.core.errors import ConfigError
from shadeproxy.tiers.version import VERSION_NAME

HERE = "s3 http://localhost:7480"


@pytest.fixture
def filled(bench, sample):
    """Return a bench whose cache has one page of the origin HERE."""
    store, _ = bench.open(contents=HERE)
    bench.add(store, sample(1, 100))
    store.close()
    return bench


@pytest.mark.parametrize(
    "spelling", ["s3 http://127.0.0.1:7480", "s3 http://[::1]:7480", "s3 HTTP://LOCALHOST:7480/"]
)
def test_another_spelling_keeps_the_cache(filled, spelling):
    _, recovered = filled.open(contents=spelling)
    assert len(recovered) == 1


def test_a_directory_that_names_its_origin_as_it_was_written_keeps_its_cache(filled):
    version = filled.path / VERSION_NAME
    version.write_text(json.dumps(json.loads(version.read_text()) | {"contents": "s3 http://127.0.0.1:7480"}))
    _, recovered = filled.open(contents=HERE)
    assert len(recovered) == 1


def test_another_origin_is_refused_with_both_names_and_changes_nothing(filled):
    before = {file.name: file.read_bytes() for file in filled.path.iterdir() if file.name != "lock"}
    with pytest.raises(ConfigError) as caught:
        filled.open(contents="s3 http://localhost:7481")
    assert str(caught.value) == (
        f"cache.disk.path: {filled.path} is a cache of s3 http://localhost:7480, and the origin is now"
        " s3 http://localhost:7481; nothing was changed. Correct origin.endpoint; or, if both are one origin,"
        ' set origin.name = "s3 http://localhost:7480"; or drop the cache (shadeproxy purge --all), choose'
        ' another directory, or set cache.on_other_origin = "set-aside" to keep it beside a new one'
    )
    assert {file.name: file.read_bytes() for file in filled.path.iterdir() if file.name != "lock"} == before
    _, recovered = filled.open(contents=HERE)
    assert len(recovered) == 1


def test_set_aside_keeps_both(filled, sample):
    store, recovered = filled.open(contents="s3 http://localhost:7481", set_aside=True)
    assert recovered == []
    filled.add(store, sample(2, 100))
    store.close()
    aside = filled.path.with_name("tier.other-origin-1")
    assert json.loads((aside / VERSION_NAME).read_text())["contents"] == HERE
    assert list(aside.glob("*.seg"))
    _, recovered = filled.open(contents="s3 http://localhost:7481", set_aside=True)
    assert len(recovered) == 1
