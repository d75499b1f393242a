"""The public API as a user's type checker sees it."""

import os
import subprocess
import sys
from pathlib import Path

import shadeproxy_sdk as shade

# torch is left out: reading its sources takes a minute, and its types are not ours.
SETTINGS = "[mypy]\nstrict = True\ndisallow_subclassing_any = False\n[mypy-torch.*]\nfollow_imports = skip\n"
LOOP = """
from collections.abc import Iterator

import numpy as np
import shadeproxy_sdk as shade

client = shade.Client("http://127.0.0.1:9001")
manifest = shade.Manifest.from_entries("mine", [shade.Entry("bucket", "key")])
job = client.job("run", dataset=manifest, rank=0, world_size=2)
sampler = shade.ShadeSampler(job, "reorder", seed=1, batch_size=8, announce_epochs=1, epochs=3)
announced = shade.announce([1, 2], job, ids=[5, 6], ahead=4)
announced.set_epoch(1)
indices: Iterator[int] = iter(sampler)
length: int = len(sampler) + len(announced)
job.report(np.arange(4), np.ones((4, 7)), lengths=[7, 7, 3, 1])
job.report(np.arange(4), np.ones((4, 7)), mask=np.ones((4, 7)))
aggressiveness: float = sampler.validated(accuracy=0.5)
ids: np.ndarray[tuple[int, ...], np.dtype[np.uint32]] = sampler.order(0)
count: int = job.stats().announced
sampler.load_state_dict(sampler.state_dict(position=3))
"""
MISTAKES = {
    'shade.ShadeSampler(job, "best")': 'incompatible type "Literal',
    'shade.announce([1], "run")': 'expected "Job | None"',
    "sampler.validated(0.5)": "Too many positional arguments",
    "job.reports([1], [0.5])": 'has no attribute "reports"',
}


def check(tmp_path, text):
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    (tmp_path / "loop.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "loop.py"]
    environment = os.environ | {"MYPYPATH": str(Path(shade.__file__).parents[1])}
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)


def test_a_loop_type_checks_and_its_mistakes_do_not(tmp_path):
    assert check(tmp_path, LOOP).stdout.startswith("Success")
    answer = check(tmp_path, LOOP + "\n".join(MISTAKES))
    assert answer.returncode == 1
    lines = answer.stdout.splitlines()
    assert len([line for line in lines if ": error:" in line]) == len(MISTAKES), answer.stdout
    assert all(any(text in line for line in lines) for text in MISTAKES.values()), answer.stdout
