"""``python -m shadeproxy_bench.studies.prefetch`` prints bytes and times with prefetching, a line for each
setting.
"""

import argparse
from collections.abc import Sequence

from shadeproxy_bench.studies.prefetch.model import EVICTION, NOTHING, PREFETCHING, train
from shadeproxy_bench.studies.prefetch.settings import FAST, SLOW


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Prefetching, in bytes and time, setting by setting.")
    parser.add_argument("--seed", type=int, default=0, help="of the orders of the epochs")
    seed = parser.parse_args(arguments).seed
    print("| setting | bytes / eviction alone | wall / no order | first epoch / no order | stall, % |")
    print("|---|---|---|---|---|")
    for setting in (*FAST, *SLOW):
        ours, alone, plain = (train(setting, way, seed=seed) for way in (PREFETCHING, EVICTION, NOTHING))
        print(
            f"| {setting.name} | {ours.origin_bytes / alone.origin_bytes:.3f} |"
            f" {ours.wall_s / plain.wall_s:.3f} | {ours.first_s / plain.first_s:.3f} |"
            f" {100 * ours.stall_s / ours.wall_s:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
