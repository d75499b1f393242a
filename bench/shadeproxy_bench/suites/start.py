"""The start with very many pages on disk, and the memory for each resident page, measured by
``bench/start.py``.

The script's ``measure(pages, directory)`` returns a pair for "clean" and one for "killed". The first of a
pair has the times seen from outside (``accept_s``, ``first_hit_s``). The second has the memory of a page
cache (``memory_bytes`` for each resident page).
"""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.server import workplace
from shadeproxy_bench.suites.scripts import script_function


def start(scale: Scale) -> Iterator[Planned]:
    pages = scale.pick(1_000_000, 100_000)

    @cache
    def once() -> dict[str, Any]:
        measure = script_function("start.py", "measure")
        with workplace(on_disk=True) as work:
            found: dict[str, Any] = measure(pages, work)
        return found

    def figure(case: str, part: int, name: str) -> Measured:
        return Measured(float(getattr(once()[case][part], name)))

    for case, after in (("clean", "a clean stop"), ("killed", "kill -9")):
        for what, part, name, unit, bound in (
            ("accepts connections", 0, "accept_s", "s", 1.0),
            ("hits", 0, "first_hit_s", "s", 5.0),
            ("process memory beyond bodies", 1, "memory_bytes", "B/page", 300.0),
        ):
            yield Planned(
                f"start with {pages:,} pages after {after}: {what}",
                unit,
                Target(bound, at_least=False, of="ours"),
                "bench/start.py: disk tier of 1 KB pages; seconds since the process began, RssAnon per page",
                partial(figure, case, part, name),
            )
