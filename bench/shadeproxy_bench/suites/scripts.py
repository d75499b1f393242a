"""Loads functions of the scripts in the repository's ``bench/``, which measure some of the rows."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shadeproxy_bench.faults import NotBuilt

SCRIPTS = Path(__file__).parents[2]


def script_function(script: str, name: str, scripts: Path = SCRIPTS) -> Callable[..., Any]:
    """Return the function ``name`` of bench/``script``. Raises NotBuilt if it does not exist."""
    path = scripts / script
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise NotBuilt(f"bench/{script} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None:
        raise NotBuilt(f"bench/{script} has no function {name}")
    return function
