"""Run the command line: ``python -m shadeproxy``, and the console script."""

import gc
import os
import sys

_LEAST_BYTES = 256 * 1024**2


def run() -> None:
    """Run the command line. On another system than Linux, say so in one line and exit with status 1."""
    if sys.platform != "linux":
        sys.exit(
            f"error: the proxy runs on Linux only, and this is {sys.platform}; run it on a Linux host or in a"
            " container. The SDK, shadeproxy-sdk, works here"
        )
    _open_standard_streams()
    import resource  # noqa: PLC0415  other systems lack it

    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < _LEAST_BYTES:
        # With less, numpy cannot be imported, and its library ends the process.
        sys.exit(
            f"error: ulimit -v allows {limit_bytes >> 20} MiB of address space, which is too little to load"
            " the program; remove the limit: ulimit -v unlimited; systemd: LimitAS=infinity"
        )
    # The collector would walk through the new modules again and again, and find nothing.
    gc.disable()
    from shadeproxy.cli.main import run as run_commands  # noqa: PLC0415  other systems lack what it imports

    gc.enable()
    run_commands()


def _open_standard_streams() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that is closed. Otherwise a file of the cache or a
    connection would get its number, and what is printed would go there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The kernel gives the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
            stream = open(number, mode, closefd=False)  # noqa: SIM115 - of a descriptor, for ever
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    run()
