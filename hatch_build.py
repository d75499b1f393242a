"""Compiles the Cython part of the package; hatchling calls it when the package is built.

Law: an install never fails because of it. If something is missing or goes wrong, it prints one line on stderr
and the package is built without the module: shadeproxy/api/s3/request_cache.py does the same work in Python.
The tree stays unchanged, except that an editable install, which runs from the tree, gets the module beside
its source.
"""

import os
import shutil
import sysconfig
from hashlib import sha256
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_MODULE = "shadeproxy.api.s3._request_cache"
_SOURCE = Path("shadeproxy", "api", "s3", "_request_cache.pyx")


class CustomBuildHook(BuildHookInterface[Any]):
    """The build hook of one wheel; an editable install is a wheel of version "editable"."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._directory = TemporaryDirectory(prefix="shadeproxy-build-")
        if os.environ.get("SHADEPROXY_PURE") == "1" and version != "editable":
            return  # a wheel for all machines, without the module
        root = Path(self.root)
        module = _SOURCE.with_name(f"_request_cache{sysconfig.get_config_var('EXT_SUFFIX')}")
        try:
            if version == "editable":
                # An older module would be loaded beside sources that it does not fit.
                (root / module).unlink(missing_ok=True)
            built = _compiled(root / _SOURCE, Path(self._directory.name))
            if version == "editable":
                shutil.copy(built, root / module)
        except Exception as error:  # noqa: BLE001 - tools that are missing and tools that fail raise anything
            self.app.display_warning(_explained(error))
            return
        if version != "editable":
            build_data["force_include"][str(built)] = str(module)
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        self._directory.cleanup()


def _compiled(source: Path, directory: Path) -> Path:
    """Compile ``source`` under ``directory`` and return the path of the module."""
    # Imported here: without build isolation they may be missing.
    from Cython.Build import cythonize  # noqa: PLC0415
    from setuptools import Distribution, Extension  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    # The module carries the digest of its sources: shadeproxy/api/s3/compiled.py checks it at import.
    names = (source.name, *sorted(part.name for part in source.parent.glob("*.pxi")))
    texts = [source.with_name(name).read_bytes() for name in names]
    for name, text in zip(names, texts, strict=True):
        (directory / name).write_bytes(text)
    copy, digest = directory / source.name, sha256(b"".join(texts)).hexdigest()
    copy.write_bytes(texts[0] + f'\n\nSOURCE, SOURCES = "{digest}", {names}\n'.encode())
    # -g0: debug information about the generated C would be five times as large as the rest.
    extension = Extension(_MODULE, [str(copy)], extra_compile_args=["-O2", "-g0"])
    modules = cythonize([extension], build_dir=str(directory), force=True, quiet=True)
    command = build_ext(Distribution({"ext_modules": modules}))
    command.build_lib = command.build_temp = str(directory)
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(_MODULE))


def _explained(error: Exception) -> str:
    failed = error.__context__
    if isinstance(failed, CalledProcessError):  # its text has every argument; the compiler printed the cause
        reason = f"{failed.cmd[0]!r} failed with exit code {failed.returncode}"
    else:
        reason = " ".join(str(error).split())
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.is_file():
        reason += f"; {headers} is missing"
    return (
        f"shadeproxy: {_SOURCE.name} is not compiled: {reason}. The proxy works without, hits cost more. "
        "To have it, install a C compiler and the Python headers (Debian: gcc libc6-dev python3-dev), then "
        "install the package again."
    )
