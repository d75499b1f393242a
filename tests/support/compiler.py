"""The C compiler, without optimisation, for tests that build the package."""

from pathlib import Path


def write_quick_compiler(compiler: str, directory: Path) -> str:
    """Write a program that runs ``compiler`` with -O0, and return its path.

    The build asks for -O2, and so for most of the CPU of the compiler. Of several such options the last one
    counts.
    """
    program = directory / "quick-cc"
    program.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O0\n')
    program.chmod(0o755)
    return str(program)
