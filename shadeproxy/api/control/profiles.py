"""Makes the profile of a job from the statistics of its epochs. ``shadeproxy plan`` needs the profile."""

from shadeproxy.api.control.context import ControlContext
from shadeproxy.hints.jobs import Job
from shadeproxy.plan.profile import VERSION, Loader, Profile, ProfiledEpoch
from shadeproxy.telemetry.counters import JobReads

_PAGE_GET = "get"


def profile_of(job: Job, samples: int, context: ControlContext) -> Profile:
    """Return the profile of ``job``, whose dataset has ``samples`` samples. The profile leaves out reads for
    which neither the job's reads nor its reports named an epoch.
    """
    stats = context.counted_stats()
    stats.charge_cpu()
    counted = {} if job.name not in stats.jobs else stats.jobs[job.name].epochs
    epochs = sorted(
        ((epoch, reads) for epoch, reads in counted.items() if isinstance(epoch, int)), key=lambda one: one[0]
    )
    fetched = stats.origin.get(_PAGE_GET)
    tiers = [gauges() for gauges in stats.tier_gauges.values()]
    pages = sum(tier.pages for tier in tiers)
    return Profile(
        version=VERSION,
        job=job.name,
        samples=samples,
        world_size=job.world_size,
        announced=context.hints.orders.announced.were_made(job.name),
        policy=str(context.info.get("policy", "default")),
        cache_bytes=sum(tier.capacity_bytes for tier in tiers),
        page_bytes=sum(tier.used_bytes for tier in tiers) / pages if pages else None,
        origin_s=fetched.latency_sum_s / fetched.requests if fetched and fetched.requests else None,
        origin_spread=fetched.latency_spread if fetched else 0.0,
        first_byte_s=fetched.first_byte_s if fetched else None,
        epochs=[_profiled(epoch, reads) for epoch, reads in epochs],
        cores=stats.cores,
        loader=None if job.loader is None else Loader(**job.loader._asdict()),
    )


def _profiled(epoch: int, reads: JobReads) -> ProfiledEpoch:
    return ProfiledEpoch(
        epoch=epoch,
        began=reads.began_s,
        wall_s=reads.ended_s - reads.began_s,
        samples=reads.requests,
        bytes=reads.bytes,
        hits=reads.hits_ram + reads.hits_disk,
        origin_bytes=reads.origin_bytes,
        stall_s=reads.stall_s,
        compute_s=reads.compute_s,
        cpu_s=reads.cpu_s or None,
    )
