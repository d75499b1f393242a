"""``python -m shadeproxy_bench.studies.training`` trains with every mode on every data set.

That takes more than an hour on a busy machine. With ``--resume``, it continues where an earlier call stopped.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from shadeproxy.demo.processes import termination_as_interrupt
from shadeproxy_bench import machine
from shadeproxy_bench.studies.by_hand import kept
from shadeproxy_bench.studies.training.data import DataSet, data_sets
from shadeproxy_bench.studies.training.report import modes_table, plots
from shadeproxy_bench.studies.training.runs import BUCKET, CACHED, MODES, Epoch, train

_TITLE = "# Study (b): SHADE as published and SHADE done right, on real training"
_EPOCHS = "epochs.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description="Every mode of the sampler on real training.")
    parser.add_argument("--epochs", type=int, default=10, help="of the digits; photos have half as many")
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="one data set")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/training"))
    parser.add_argument("--resume", action="store_true", help="keep the runs that --out has, make the rest")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = earlier_runs(options.out) if options.resume else []
    sets: list[DataSet] = []
    with termination_as_interrupt(), TemporaryDirectory(prefix="shadeproxy-study-") as work:
        for data in data_sets(photos=options.photos):
            if options.only not in {None, data.name}:
                continue
            sets.append(data)
            epochs = max(2, options.epochs // 2) if data.name == "photos" else options.epochs
            data.write(Path(work) / "buckets" / BUCKET)
            for mode in MODES:
                for seed in range(options.seeds):
                    if has_run(found, data.name, mode.name, seed, epochs):
                        continue
                    found += train(
                        data,
                        mode,
                        seed,
                        epochs=epochs,
                        buckets=Path(work) / "buckets",
                        work=Path(work) / f"{data.name}-{mode.name}-{seed}",
                    )
                    _keep(found, options.out)
                    last = found[-1]
                    _say(
                        f"{data.name} {mode.name} seed {seed}: accuracy {last.accuracy:.1%}, "
                        f"{last.distinct} distinct of {last.samples}"
                    )
            path = options.out / "README.md"
            path.write_text(_markdown(sets, found, options.out, path))
            _say(f"written: {path}")


def earlier_runs(out: Path) -> list[Epoch]:
    """Return the epochs of complete runs that were stored in ``out``."""
    path = out / _EPOCHS
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Epoch) for line in lines]


def has_run(found: list[Epoch], data_set: str, mode: str, seed: int, epochs: int) -> bool:
    """Return whether ``found`` has a run of this mode, with ``epochs`` epochs. Raises ValueError if it has
    one of another length.
    """
    known = sum((one.data_set, one.mode, one.seed) == (data_set, mode, seed) for one in found)
    if known not in {0, epochs}:
        raise ValueError(f"{data_set} {mode} {seed} was run for {known} epochs: leave --resume out")
    return known == epochs


def _keep(found: list[Epoch], out: Path) -> None:
    (out / _EPOCHS).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in found))


def _markdown(sets: list[DataSet], found: list[Epoch], out: Path, earlier: Path) -> str:
    parts = [
        _TITLE,
        (
            f"`python -m shadeproxy_bench.studies.training`; {machine.describe()}. A cache of {CACHED:.0%} "
            f"of the data, at first empty, nothing prefetched, {len({one.seed for one in found})} seeds, "
            "mean ± standard deviation. Accuracy is on a test split with right labels."
        ),
    ]
    for data in sets:
        plot = plots(found, data.name, out)
        parts += [f"## {data.words}", modes_table(found, data.name), f"![{data.name}]({plot.name})"]
    return "\n\n".join([*parts, kept(earlier)]) + "\n"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
