"""The suites by name, in the order in which they run. A new one is a generator and a line here."""

from shadeproxy.bench.plan import Suite
from shadeproxy.bench.suites.epochs import epochs
from shadeproxy.bench.suites.hits import disk, hits
from shadeproxy.bench.suites.knowledge import knowledge
from shadeproxy.bench.suites.matrix import matrix
from shadeproxy.bench.suites.misses import misses
from shadeproxy.bench.suites.ratios import ratios
from shadeproxy.bench.suites.report import report
from shadeproxy.bench.suites.sdk import sdk
from shadeproxy.bench.suites.stall import stall
from shadeproxy.bench.suites.start import start
from shadeproxy.bench.suites.tiers import tiers

SUITES: dict[str, Suite] = {
    "hits": hits,
    "disk": disk,
    "sdk": sdk,
    "misses": misses,
    "epochs": epochs,
    "tiers": tiers,
    "knowledge": knowledge,
    "ratios": ratios,
    "stall": stall,
    "report": report,
    "start": start,
    "matrix": matrix,
}
