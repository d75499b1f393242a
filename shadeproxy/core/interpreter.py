"""How the running Python was built, as far as it says so itself.

CPython built with ``--enable-optimizations`` is compiled a second time with what a training run showed
(profile-guided optimisation). Rule: only what is certain is said. Distributions call ``make profile-opt``
without that option, and take the flags out of what ``sysconfig`` tells (Debian and conda both do), so that
the option's absence alone proves nothing.
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
    """Whether it was built with profile-guided optimisation; None: it cannot be told.

    ``variables``, ``prefix``: of the running Python, where they are not given.
    """
    known = sysconfig.get_config_vars() if variables is None else variables
    options = str(known.get("CONFIG_ARGS") or "")
    flags = " ".join(str(known.get(name) or "") for name in _FLAGS)
    if "--enable-optimizations" in options or any(flag in flags for flag in _PROFILE_USED):
        return True
    # configure always sets this one: where it is empty, flags were taken out.
    told = options and str(known.get("PGO_PROF_USE_FLAG") or "").strip()
    distributed = (sys.base_prefix if prefix is None else prefix) == _DISTRIBUTION
    if not told or distributed or "--with-lto" in options:
        return None
    return False


def version() -> str:
    """As "3.11.7", and how it was built where that is certain: "3.11.7 (optimised build)"."""
    build = {True: " (optimised build)", False: " (built without --enable-optimizations)", None: ""}
    return f"{platform.python_version()}{build[is_optimised()]}"
