"""Facts about a Python's build that follow from its build variables, as several distributions set them."""

import pytest

from shadeproxy.core.interpreter import is_optimised

USES = "-fprofile-use -fprofile-correction"
BUILDS = {
    "pyenv": ({"CONFIG_ARGS": "'--prefix=/home/me' '--enable-shared'", "PGO_PROF_USE_FLAG": USES}, False),
    "the image python:3.11": (
        {"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'", "PGO_PROF_USE_FLAG": USES},
        True,
    ),
    "conda, its flags taken out": (
        {"CONFIG_ARGS": "'--with-computed-gotos'", "PGO_PROF_USE_FLAG": " "},
        None,
    ),
    "make profile-opt, by who cares": ({"CONFIG_ARGS": "'--with-lto'", "PGO_PROF_USE_FLAG": USES}, None),
    "gcc's flag among those of the core": (
        {"CONFIG_ARGS": "''", "PGO_PROF_USE_FLAG": USES, "PY_CFLAGS_NODIST": f"-std=c11 {USES}"},
        True,
    ),
    "clang's flag among those of the core": (
        {"CONFIG_ARGS": "''", "PY_CORE_CFLAGS": "-O3 -fprofile-instr-use=code.profclangd"},
        True,
    ),
    "no makefile at all": ({}, None),
    "options unknown": ({"CONFIG_ARGS": None, "PGO_PROF_USE_FLAG": USES}, None),
}


@pytest.mark.parametrize("build", BUILDS)
def test_only_what_is_certain_is_said(build):
    variables, optimised = BUILDS[build]
    assert is_optimised(variables, "/home/me") is optimised


@pytest.mark.parametrize("use", ["", USES])
def test_a_distribution_s_python_is_never_called_slow(use):
    # Debian builds its Python with ``make profile-opt``. The build variables show neither this nor the flags.
    assert (
        is_optimised({"CONFIG_ARGS": "'--enable-shared' '--prefix=/usr'", "PGO_PROF_USE_FLAG": use}, "/usr")
        is None
    )
    assert is_optimised({"CONFIG_ARGS": "'--enable-optimizations'", "PGO_PROF_USE_FLAG": use}, "/usr") is True


def test_the_running_python_is_asked(monkeypatch):
    monkeypatch.setattr("sys.base_prefix", "/opt/python")
    monkeypatch.setattr("sysconfig.get_config_vars", lambda: BUILDS["pyenv"][0])
    assert is_optimised() is False
    monkeypatch.setattr("sys.base_prefix", "/usr")
    assert is_optimised() is None
