"""The suites by name, in the order in which they run. A new suite is a generator of rows, and a line in this
module.
"""

from shadeproxy_bench.plan import Suite
from shadeproxy_bench.suites.cluster import suite as cluster
from shadeproxy_bench.suites.disks import disks
from shadeproxy_bench.suites.epochs import epochs
from shadeproxy_bench.suites.hits import disk, hits
from shadeproxy_bench.suites.knowledge import knowledge
from shadeproxy_bench.suites.matrix import matrix
from shadeproxy_bench.suites.misses import misses
from shadeproxy_bench.suites.needs import needs
from shadeproxy_bench.suites.placing import placing
from shadeproxy_bench.suites.plan import plan
from shadeproxy_bench.suites.ratios import ratios
from shadeproxy_bench.suites.report import report
from shadeproxy_bench.suites.sdk import sdk
from shadeproxy_bench.suites.stall import stall
from shadeproxy_bench.suites.start import start
from shadeproxy_bench.suites.storing import storing
from shadeproxy_bench.suites.tiers import tiers
from shadeproxy_bench.suites.tls import tls
from shadeproxy_bench.suites.uploads import uploads
from shadeproxy_bench.suites.workers import workers

SUITES: dict[str, Suite] = {
    "hits": hits,
    "disk": disk,
    "sdk": sdk,
    "misses": misses,
    "storing": storing,
    "tls": tls,
    "uploads": uploads,
    "workers": workers,
    "cluster": cluster,
    "epochs": epochs,
    "tiers": tiers,
    "disks": disks,
    "knowledge": knowledge,
    "ratios": ratios,
    "stall": stall,
    "plan": plan,
    "placing": placing,
    "needs": needs,
    "report": report,
    "start": start,
    "matrix": matrix,
}
