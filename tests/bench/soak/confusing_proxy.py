"""The proxy of a soak, with a planted fault: parts of pages that begin within the same 60,000 bytes are taken
for one another.
"""

from shadeproxy.core import ranges

_part_number = ranges.part_number
ranges.part_number = lambda start: _part_number(start // 60_000 * 60_000)  # Before other modules import it.

from shadeproxy.cli.main import run  # noqa: E402

run()
