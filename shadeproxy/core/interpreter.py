"""Finds out whether the running Python was built with profile-guided optimisation.

CPython built with ``--enable-optimizations`` is compiled a second time with the profile of a training run
(profile-guided optimisation). Law: report only what is certain. A missing option alone proves nothing:
distributions such as Debian and conda call ``make profile-opt`` without that option, and remove the flags
from ``sysconfig``.
"""

import platform
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

_PROFILE_USED = ("-fprofile-use", "-fprofile-instr-use")
_FLAGS = ("PY_CFLAGS_NODIST", "PY_CORE_CFLAGS")
_DISTRIBUTION = "/usr"


def is_optimised(variables: Mapping[str, Any] | None = None, prefix: str | None = None) -> bool | None:
    """Return whether Python was built with profile-guided optimisation; None if that is not known.

    ``variables``, ``prefix``: those of another Python; by default those of the running one.
    """
    known = sysconfig.get_config_vars() if variables is None else variables
    options = str(known.get("CONFIG_ARGS") or "")
    flags = " ".join(str(known.get(name) or "") for name in _FLAGS)
    if "--enable-optimizations" in options or any(flag in flags for flag in _PROFILE_USED):
        return True
    # CPython's configure always sets PGO_PROF_USE_FLAG. So if it is empty, flags were removed.
    told = options and str(known.get("PGO_PROF_USE_FLAG") or "").strip()
    distributed = (sys.base_prefix if prefix is None else prefix) == _DISTRIBUTION
    if not told or distributed or "--with-lto" in options:
        return None
    return False


def version() -> str:
    """Return the version of Python and, if it is known, the kind of build: "3.11.7 (optimised build)"."""
    build = {True: " (optimised build)", False: " (built without --enable-optimizations)", None: ""}
    return f"{platform.python_version()}{build[is_optimised()]}"
