"""``shadeproxy serve`` on faulty media: the unmodified product. The calls by which its tiers read and write
segments may fail. SIGUSR1 ends all faults.
"""

import argparse
import signal
from collections.abc import Mapping
from pathlib import Path

from shadeproxy.app.serve import serve
from shadeproxy.config import Settings
from shadeproxy_bench.reliability.chaos.injected import Injected
from shadeproxy_bench.reliability.kit.faulty_medium import FaultyCalls, MediumFault, scheduled

RATES: Mapping[str, Mapping[MediumFault, float]] = {
    "disk": {
        MediumFault.READ_EIO: 0.005,
        MediumFault.READ_SLOW: 0.02,
        MediumFault.WRITE_EIO: 0.01,
        MediumFault.WRITE_ENOSPC: 0.005,
        MediumFault.WRITE_EROFS: 0.0001,
        MediumFault.WRITE_SHORT: 0.03,
        MediumFault.WRITE_TORN: 0.01,
        MediumFault.WRITE_SLOW: 0.02,
        MediumFault.PUNCH_EIO: 0.01,
        MediumFault.PUNCH_LOST: 0.02,
    },
    # A tmpfs can be full, but it has no device that fails or is slow.
    "ram": {
        MediumFault.WRITE_ENOSPC: 0.003,
        MediumFault.WRITE_SHORT: 0.02,
        MediumFault.PUNCH_LOST: 0.005,
    },
}
"""The probability, by tier, of each fault in each call that the fault fits. One EROFS, or eight EIO in a row,
switch the tier off until the next start.
"""
KINDS = [f"{tier} {fault}" for tier, rates in RATES.items() for fault in rates]
_SLOW_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description="The proxy of a chaos run.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--injected", type=Path, required=True, help="where faults are counted")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--turn", type=int, required=True, help="which of the processes that are killed in turn"
    )
    parser.add_argument("--severity", type=float, default=1.0, help="multiplies all rates")
    options = parser.parse_args()
    injected, calls = Injected(options.injected, KINDS), {}
    for tier, rates in RATES.items():

        def note(fault: MediumFault, tier: str = tier) -> None:
            injected.note(f"{tier} {fault}")

        schedule = scheduled(
            rates={fault: rate * options.severity for fault, rate in rates.items()},
            seed=options.seed * 1000 + options.turn,
            noted=note,
        )
        calls[tier] = FaultyCalls(schedule, slow_s=_SLOW_S)

    def end(_number: int, _frame: object) -> None:
        for one in calls.values():
            one.schedule.end()

    signal.signal(signal.SIGUSR1, end)
    serve(Settings.load(options.config), calls=calls)


if __name__ == "__main__":
    main()
