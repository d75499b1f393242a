"""The command lines of processes on this machine."""

from pathlib import Path


def processes_below(directory: Path) -> list[str]:
    """Return the command lines of running processes that contain the path ``directory``."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(directory) in line:
            lines.append(line)
    return lines
