"""Revalidate the cached objects of a data set by listing it when a job begins an epoch.

One request checks a thousand objects, so no read of the epoch has to check its own (design 3).
"""

from shadeproxy.engine.engine import Engine
from shadeproxy.hints.jobs import Job
from shadeproxy.hints.registry import HintRegistry

_LISTED_AT_ONCE = 1000
_MOST_OTHERS = 2  # objects that share the prefix, as a multiple of the data set's own


def check_data_sets_by_epoch(hints: HintRegistry, engine: Engine) -> None:
    """Check a job's data set at the start of each of its epochs, from now on."""

    def check(job: Job) -> None:
        dataset = hints.datasets.get(job.dataset or "")
        if dataset is None or not len(engine.cache.residents):
            return
        for bucket, prefix, count in dataset.entries.prefixes():
            most_pages = 1 + _MOST_OTHERS * count // _LISTED_AT_ONCE
            engine.check_listed(bucket, prefix, most_pages, dataset.entries.namespace)

    hints.jobs.on_epoch = check
