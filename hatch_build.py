"""Compiles the Cython modules of the package; hatchling calls it when the package is built.

Law: an install never fails because of them. If something is missing or goes wrong, it prints one line on
stderr for each module that is not compiled, and the package is built without it: Python code beside each of
them does the same work. The tree stays unchanged, except that an editable install, which runs from the tree,
gets the modules beside their sources.
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

SOURCES = (
    Path("shadeproxy", "api", "s3", "_request_cache.pyx"),
    Path("shadeproxy", "core", "_heads.pyx"),
    Path("shadeproxy", "policy", "_kernels.pyx"),
    Path("shadeproxy", "engine", "index", "_page_table.pyx"),
    Path("shadeproxy", "hints", "_job_state.pyx"),
)
"""The Cython modules. What such a module includes lies beside it, in files ``*.pxi``."""

# -g0: debug information about the generated C would be five times as large as the rest. -ffp-contract=off: a
# compiled calculation has the same result as numpy's, to the last bit.
_OPTIONS = ["-O2", "-g0", "-ffp-contract=off"]


class CustomBuildHook(BuildHookInterface[Any]):
    """The build hook of one wheel; an editable install is a wheel of version "editable"."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._directory = TemporaryDirectory(prefix="shadeproxy-build-")
        if os.environ.get("SHADEPROXY_PURE") == "1" and version != "editable":
            return  # a wheel for all machines, without the module
        for source in SOURCES:
            self._add(source, version == "editable", build_data)

    def _add(self, source: Path, in_place: bool, build_data: dict[str, Any]) -> None:
        """Compile one module for the wheel, or beside its source (``in_place``)."""
        root, directory = Path(self.root), Path(self._directory.name, source.stem)
        module = source.with_name(f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}")
        directory.mkdir()
        try:
            if in_place:
                # An older module would be loaded beside sources that it does not fit.
                (root / module).unlink(missing_ok=True)
            built = compiled(root, source, directory)
            if in_place:
                shutil.copy(built, root / module)
        except Exception as error:  # noqa: BLE001 - tools that are missing and tools that fail raise anything
            self.app.display_warning(_explained(source, error))
            return
        if not in_place:
            build_data["force_include"][str(built)] = str(module)
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        self._directory.cleanup()


def compiled(root: Path, path: Path, directory: Path) -> Path:
    """Compile the source ``path`` of the tree ``root`` in ``directory`` and return the path of the module."""
    # Imported here: without build isolation they may be missing.
    from Cython.Build import cythonize  # noqa: PLC0415
    from setuptools import Distribution, Extension  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    # The module carries the digest of its sources: shadeproxy/core/compiled.py checks it at import.
    source, name = root / path, ".".join(path.with_suffix("").parts)
    names = (source.name, *sorted(part.name for part in source.parent.glob("*.pxi")))
    texts = [source.with_name(one).read_bytes() for one in names]
    for one, text in zip(names, texts, strict=True):
        (directory / one).write_bytes(text)
    copy, digest = directory / source.name, sha256(b"".join(texts)).hexdigest()
    copy.write_bytes(texts[0] + f'\n\nSOURCE, SOURCES = "{digest}", {names}\n'.encode())
    extension = Extension(name, [str(copy)], extra_compile_args=_OPTIONS)
    modules = cythonize([extension], build_dir=str(directory), force=True, quiet=True)
    command = build_ext(Distribution({"ext_modules": modules}))
    command.build_lib = command.build_temp = str(directory)
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(name))


def _explained(source: Path, error: Exception) -> str:
    failed = error.__context__
    if isinstance(failed, CalledProcessError):  # its text has every argument; the compiler printed the cause
        reason = f"{failed.cmd[0]!r} failed with exit code {failed.returncode}"
    else:
        reason = " ".join(str(error).split())
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.is_file():
        reason += f"; {headers} is missing"
    return (
        f"shadeproxy: {source.name} is not compiled: {reason}. The proxy works without, at more CPU. "
        "To have it, install a C compiler and the Python headers (Debian: gcc libc6-dev python3-dev), then "
        "install the package again."
    )
