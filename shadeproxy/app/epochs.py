"""When a job begins an epoch, what is cached of its data set is checked, by listing it: a thousand objects a
request, and no read of the epoch has to ask for its own (design 3).
"""

from shadeproxy.engine.engine import Engine
from shadeproxy.engine.knowledge.jobs import Job
from shadeproxy.engine.knowledge.knowledge import Knowledge

_LISTED_AT_ONCE = 1000
_MOST_OTHERS = 2  # times as many objects as the data set has may share its prefix


def check_data_sets_by_epoch(knowledge: Knowledge, engine: Engine) -> None:
    """Do so from now on."""

    def check(job: Job) -> None:
        dataset = knowledge.datasets.get(job.dataset or "")
        if dataset is None or not len(engine.cache.residents):
            return
        for bucket, prefix, count in dataset.entries.prefixes():
            most_pages = 1 + _MOST_OTHERS * count // _LISTED_AT_ONCE
            engine.check_listed(bucket, prefix, most_pages, dataset.entries.namespace)

    knowledge.jobs.on_epoch = check
