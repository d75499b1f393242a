"""The bench touches memory and gives it back. It never touches more than half of the available memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from shadeproxy_bench import warm_memory as module
from shadeproxy_bench.warm_memory import warm_memory

MIB = 1024**2
LOOK = """
from pathlib import Path
from shadeproxy_bench import warm_memory as module

def look():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) // 1024, int(status["VmHWM"].split()[0]) // 1024

module._PROCESSES_BYTES = 0
before, _ = look()
with module.warm_memory(400 * 1024**2) as taken:
    within, most = look()
after, _ = look()
print(taken // 1024**2, most - before, within - before, after - before)
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that acts as a machine with ``available`` MiB of free memory. If ``limit`` is given,
    a control group limits the memory.
    """
    monkeypatch.setattr(module, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(module, "_CGROUP_LIMIT", tmp_path / "memory.max")
    monkeypatch.setattr(module, "_PROCESSES_BYTES", 8 * MIB)

    def make(available, limit=None):
        (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {available * 1024} kB\n")
        if limit is not None:
            (tmp_path / "memory.max").write_text(limit)

    return make


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_it_touches_all_and_keeps_a_page_in_each_mib():
    told = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True).stdout
    taken, most, within, after = map(int, told.split())
    assert taken == 400
    assert most >= 399  # The kernel counts pages in batches for each processor, so the number is not exact.
    assert within < 40
    assert after <= within


@pytest.mark.parametrize(
    ("available", "limit", "taken"),
    [
        (1000, None, 24),
        (1000, "max\n", 24),
        (20, None, 10),
        (1000, str(20 * MIB), 10),
        (20, str(1000 * MIB), 10),
        (1, None, 0),
    ],
)
def test_it_is_what_the_row_stores_and_its_processes_take_or_half_of_what_there_is(
    machine, available, limit, taken
):
    machine(available, limit)
    with warm_memory(16 * MIB) as found:
        assert found == taken * MIB


def test_where_nothing_is_known_nothing_is_taken(machine, tmp_path):
    with warm_memory(16 * MIB) as found:
        assert found == 0
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\n")
    with warm_memory(16 * MIB) as found:
        assert found == 0


def test_it_ends_with_the_row_that_failed(machine):
    machine(1000)
    with pytest.raises(KeyError), warm_memory(16 * MIB):
        raise KeyError
