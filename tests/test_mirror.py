"""Each module has a test file: the file of its own name at the same place, or the file in ``TABLE``."""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent

TABLE = {
    "core.delegated_body": "engine/storage/test_delegated_writes.py",
    "origin.link_depth": "origin/test_link.py",
    "app.asking": "app/test_sharing.py",
    "app.measuring": "app/test_sharing.py",
    "engine.read.body": "engine/storage/test_load_queue.py",
    "engine.storage.disk_page": "api/s3/test_slow_disk_clients.py",
    "engine.storage.page_views": "api/s3/test_slow_disk_clients.py",
    "engine.read.pending_loads": "engine/storage/test_load_queue.py",
    "engine.read.taker": "engine/read/test_slow_readers.py",
    "engine.read.worker_access_log": "engine/test_worker_reads.py",
    "engine.read.body_files": "api/s3/test_worker_bodies.py",
    "engine.read.needed": "api/s3/test_lane_read.py",
    "engine.freshness.probe": "engine/test_grants.py",
    "origin.field_places": "origin/test_http1.py",
    "cli.predictions": "cli/test_plan.py",
    "telemetry.otel": "telemetry/test_otel_sdk.py",
    "config.otel": "app/test_otel.py",
    "app.handlers": "api/s3/test_otel_handler.py",
    "plan.plots": "cli/test_plan.py",
    "plan.prices": "plan/test_grid.py",
    "plan.profile": "plan/test_predict.py",
    "api.s3.answer_end": "api/s3/test_relay.py",
    "api.s3.worker_forwarder": "api/s3/test_worker_forwards.py",
    "api.s3.forward_handler": "api/s3/test_disconnects.py",
    "app.worker_forwarding": "api/s3/test_worker_forwards.py",
    "app.worker_forwards": "e2e/test_workers_uploads.py",
    "engine.read.forward_messages": "api/s3/test_worker_forwards.py",
    "engine.read.origin_keys": "api/s3/test_worker_forwards.py",
    "engine.read.worker_forwards": "api/s3/test_worker_forwards.py",
    "engine.read.fill_memory": "api/s3/test_worker_misses.py",
    "engine.read.fill_messages": "api/s3/test_worker_misses.py",
    "api.s3.watched_client": "api/s3/test_relay.py",
    "engine.read.plain_read": "api/s3/test_plain_reads.py",
    "engine.read.plain_reads": "api/s3/test_plain_reads.py",
    "engine.read.worker_fills": "api/s3/test_worker_misses.py",
    "engine.read.worker_read": "api/s3/test_worker_misses.py",
    "hints.order.state": "hints/order/test_tracker.py",
    "hints.order.page_places": "hints/order/test_tracker.py",
    "hints.job_expectations": "hints/test_many_jobs.py",
    "hints.shared_columns": "hints/test_many_jobs.py",
    "engine.read.writes": "engine/test_races.py",
    "engine.read.single_flight": "engine/read/test_flight.py",
    "engine.read.flight_filler": "engine/read/test_fill.py",
    "engine.read.fill_steps": "engine/read/test_callback_fill.py",
    "api.s3.pending_read": "api/s3/test_lane_read.py",
    "api.browsers": "api/s3/test_browsers.py",
    "api.control.answers": "e2e/test_openapi.py",
    "api.control.app": "api/control/test_service.py",
    "api.control.batch": "api/control/reads/test_batch.py",
    "api.control.bodies": "api/control/test_jobs.py",
    "api.control.columns": "api/control/test_frozen.py",
    "api.control.context": "api/control/test_admin.py",
    "api.control.frames": "api/control/reads/test_frames.py",
    "api.control.guard": "api/control/test_guarded.py",
    "api.control.locate": "api/control/reads/test_locate.py",
    "api.control.lookahead": "api/control/reads/test_flow.py",
    "api.control.openapi": "e2e/test_openapi.py",
    "api.control.order_builder": "hints/order/test_orders.py",
    "api.control.pieces": "api/control/reads/test_batch.py",
    "api.control.queries": "api/control/test_jobs.py",
    "api.control.reads": "api/control/reads/test_calls.py",
    "api.control.routes": "api/control/test_guarded.py",
    "api.control.running": "api/control/test_operations.py",
    "api.s3.auth.authenticator": "api/s3/auth/test_sigv4.py",
    "api.s3.auth.clients": "api/s3/auth/test_sigv4.py",
    "api.s3.auth.policy": "api/s3/test_post.py",
    "api.s3.cross_site": "api/s3/test_browsers.py",
    "api.s3.exchange": "api/s3/test_authorizer.py",
    "api.s3.fields": "api/s3/test_canonical.py",
    "api.s3.handler": "api/s3/test_disconnects.py",
    "api.s3.headers": "api/s3/test_forward.py",
    "api.s3.response_heads": "api/s3/test_lane.py",
    "api.s3.request_cache": "api/s3/test_lane.py",
    "api.s3.parameters": "api/s3/test_canonical_signed.py",
    "api.s3.port": "api/s3/test_many_readers.py",
    "api.s3.read": "api/s3/test_semantics.py",
    "api.s3.response": "api/s3/test_held.py",
    "api.s3.sender": "api/s3/test_compiled_slots.py",
    "api.s3.server": "api/s3/test_connection_limit.py",
    "api.s3.signed": "api/s3/test_lane_signed.py",
    "api.s3.upload.chunked": "api/s3/upload/test_body.py",
    "api.s3.upload.documents": "api/s3/test_post.py",
    "api.s3.upload.plan": "api/s3/upload/test_body.py",
    "app.bus_errors": "e2e/test_truncated.py",
    "app.channel": "app/test_workers.py",
    "app.peer_listening": "app/test_workers.py",
    "app.clients": "config/test_namespaces.py",
    "app.listening": "api/control/test_server.py",
    "app.reloadable": "app/test_workers.py",
    "app.request_log": "e2e/test_workers_logs.py",
    "app.tier_diagnosis": "app/test_diagnosis.py",
    "app.cluster_agreement": "app/test_owned_pages.py",
    "app.cluster_checkup": "app/test_owned_pages.py",
    "app.clustering": "e2e/test_cluster.py",
    "app.connection_limits": "e2e/test_descriptors.py",
    "app.draining": "app/test_proxy.py",
    "app.worker": "app/test_workers.py",
    "app.worker_access": "e2e/test_workers_upstreams.py",
    "app.worker_cluster": "e2e/test_owned_workers.py",
    "app.worker_openers": "app/test_workers.py",
    "origin.receiver": "origin/test_connection.py",
    "origin.interim": "cluster/test_slow_origins.py",
    "cluster.contents": "cluster/test_replication.py",
    "cluster.duties": "cluster/test_membership.py",
    "cluster.events": "cluster/test_replication.py",
    "cluster.log": "cluster/test_log_conformance.py",
    "cluster.redis_log": "cluster/test_log_conformance.py",
    "cluster.redis_scripts": "cluster/test_log_conformance.py",
    "cluster.snapshot": "cluster/test_replication.py",
    "cluster.status": "api/control/test_cluster.py",
    "cluster.timing": "cluster/test_membership.py",
    "cluster.delete_parts": "cluster/test_relaying.py",
    "cluster.peer_reads": "cluster/test_relaying_by_callbacks.py",
    "cluster.peer_requests": "cluster/test_relaying.py",
    "cluster.relay_counts": "cluster/test_relaying.py",
    "cluster.relay_heads": "cluster/test_relaying_by_callbacks.py",
    "cluster.relayed_read": "cluster/test_relaying.py",
    "cluster.relaying_origin": "cluster/test_relaying.py",
    "cluster.routes": "cluster/test_relaying.py",
    "cluster.worker_routes": "cluster/test_ownership.py",
    "api.s3.auth.peers": "api/s3/test_peer_handler.py",
    "api.s3.relay_read": "cluster/test_relaying_by_callbacks.py",
    "api.s3.relay_stream": "api/s3/test_worker_relays.py",
    "engine.freshness.listings": "engine/freshness/test_revalidation.py",
    "core.control_groups": "core/test_cores.py",
    "cli.cluster_check": "cli/test_check.py",
    "cli.options": "cli/test_control.py",
    "cli.rows": "cli/test_check.py",
    "cli.stats": "cli/test_control.py",
    "config.explain": "config/test_settings.py",
    "config.fields": "config/test_settings.py",
    "config.layers": "config/test_settings.py",
    "config.sections": "config/test_documented_defaults.py",
    "config.toml": "config/test_settings.py",
    "core.clock": "core/test_deadline.py",
    "core.compiled": "test_build.py",
    "core.errors": "api/s3/test_errors.py",
    "core.identity": "engine/index/test_residents.py",
    "core.memo": "api/s3/test_compiled_slots.py",
    "core.tracing": "api/s3/test_clients_turns.py",
    "core.types": "core/test_ranges.py",
    "core.work_progress": "api/control/test_purges.py",
    "demo.cluster": "demo/test_nodes.py",
    "demo.messages": "demo/test_runs.py",
    "demo.model": "demo/test_main.py",
    "demo.nodes_report": "demo/test_nodes.py",
    "demo.objects": "demo/test_main.py",
    "demo.plots": "demo/test_report.py",
    "demo.screen": "demo/test_report.py",
    "demo.servers": "demo/test_processes.py",
    "demo.train": "demo/test_main.py",
    "engine.access_records": "engine/read/test_access_log.py",
    "engine.base": "engine/test_engine.py",
    "engine.freshness.versions": "engine/freshness/test_revalidation.py",
    "engine.index.columns": "engine/index/test_residents.py",
    "engine.index.hash_table": "engine/index/test_residents.py",
    "engine.index.members": "engine/index/test_residents.py",
    "engine.index.metadata": "engine/test_engine_rights.py",
    "engine.page_observer": "prefetch/test_parts.py",
    "engine.placement.candidates": "engine/placement/test_placement.py",
    "engine.placement.page_features": "engine/placement/test_placement.py",
    "engine.read.prefetch_port": "prefetch/test_faults.py",
    "engine.read.read_recorder": "engine/test_recording.py",
    "engine.read.reading": "engine/test_engine.py",
    "engine.read.sample_lookup": "api/control/reads/test_located_again.py",
    "engine.read.upkeep": "engine/storage/test_listing.py",
    "engine.rules": "engine/test_engine_rights.py",
    "engine.storage.hot_pages": "engine/read/test_hits.py",
    "engine.storage.medium": "engine/storage/test_disks.py",
    "engine.storage.page_cache": "engine/test_state_machine.py",
    "engine.storage.pinning": "engine/placement/test_pins.py",
    "engine.storage.record_reader": "engine/test_engine_rights.py",
    "engine.storage.transfers": "engine/placement/test_placement.py",
    "hints.growing": "hints/test_datasets.py",
    "hints.hashing": "hints/test_registry.py",
    "hints.jobs": "hints/test_registry.py",
    "hints.order.activity": "hints/test_expectations.py",
    "hints.order.accuracy": "hints/order/test_progress.py",
    "hints.order.announcements": "api/control/test_orders.py",
    "hints.order.build": "hints/order/test_orders.py",
    "hints.order.prepared": "hints/order/test_orders.py",
    "hints.order.pace": "hints/order/test_progress.py",
    "hints.order.sequence": "hints/order/test_tail.py",
    "hints.changes": "api/control/test_jobs.py",
    "hints.stored": "hints/test_registry.py",
    "hints.unpack": "hints/test_manifest.py",
    "hints.order.upcoming": "engine/read/test_counting.py",
    "origin.tls_failure": "origin/test_page_gets.py",
    "origin.wrapping": "origin/test_conformance.py",
    "origin.base": "origin/test_conformance.py",
    "origin.bounded": "app/test_deadline.py",
    "origin.counted": "app/test_proxy.py",
    "origin.filetree.attributes": "origin/test_file.py",
    "origin.filetree.marker": "origin/test_file.py",
    "origin.filetree.paths": "origin/test_file.py",
    "origin.filetree.pool": "origin/test_file.py",
    "origin.filetree.reading": "origin/test_file.py",
    "origin.filetree.scanning": "origin/test_file.py",
    "origin.filetree.store": "origin/test_file.py",
    "origin.filetree.writing": "origin/test_file.py",
    "origin.s3answers": "origin/test_s3.py",
    "origin.s3ops.answers": "origin/test_conformance_forward.py",
    "origin.s3ops.buckets": "origin/test_conformance_forward.py",
    "origin.s3ops.checksums": "origin/test_checksums.py",
    "origin.s3ops.copy_source": "origin/test_conformance_forward.py",
    "origin.s3ops.listing": "origin/test_conformance_forward.py",
    "origin.s3ops.metadata": "origin/test_conformance_forward.py",
    "origin.s3ops.multipart": "origin/test_conformance_forward.py",
    "origin.s3ops.objects": "origin/test_conformance_forward.py",
    "origin.s3ops.origin": "origin/test_conformance.py",
    "origin.s3ops.query": "origin/test_conformance_forward.py",
    "origin.s3ops.router": "origin/test_conformance_forward.py",
    "origin.s3ops.spans": "origin/test_conformance.py",
    "origin.s3ops.store": "origin/test_file.py",
    "origin.s3pages": "origin/test_page_gets.py",
    "origin.s3reads": "origin/test_s3.py",
    "policy.base": "policy/test_select.py",
    "policy.classic": "policy/test_hit_ratios.py",
    "policy.importance": "policy/test_hit_ratios.py",
    "policy.keeping": "prefetch/test_ahead_bound.py",
    "prefetch.fetched": "prefetch/test_prefetcher.py",
    "prefetch.limits": "prefetch/test_prefetcher.py",
    "prefetch.walk": "prefetch/test_prefetcher.py",
    "simulate.baselines.arc": "simulate/test_baselines.py",
    "simulate.baselines.queue": "simulate/test_baselines.py",
    "simulate.baselines.registry": "simulate/test_baselines.py",
    "simulate.baselines.s3fifo": "simulate/test_baselines.py",
    "simulate.baselines.sieve": "simulate/test_baselines.py",
    "simulate.baselines.tinylfu": "simulate/test_baselines.py",
    "simulate.baselines.two_queue": "simulate/test_baselines.py",
    "simulate.hint_arrays": "simulate/test_trace_file.py",
    "simulate.plots": "simulate/test_run.py",
    "simulate.recorded": "telemetry/test_recording.py",
    "simulate.trace": "simulate/test_trace_file.py",
    "simulate.workloads": "simulate/test_bound.py",
    "state.directory": "state/test_store.py",
    "state.disk": "state/test_store.py",
    "telemetry.counters": "telemetry/test_stats.py",
    "telemetry.metrics": "telemetry/test_stats.py",
    "tiers.base": "tiers/test_conformance.py",
    "tiers.files": "tiers/test_conformance.py",
    "tiers.legacy_tombstones": "tiers/test_session.py",
    "tiers.location": "tiers/test_conformance.py",
    "tiers.pending_segments": "engine/storage/test_recovery.py",
    "tiers.record_reads": "tiers/test_conformance.py",
    "tiers.recovery": "tiers/test_catalogue.py",
    "tiers.room": "tiers/test_directory.py",
    "tiers.rows": "tiers/test_catalogue.py",
    "tiers.segment": "tiers/test_conformance.py",
    "tiers.version": "tiers/test_other_origin.py",
    "sdk.address": "sdk/test_arguments.py",
    "sdk.batch_buffer": "sdk/near/test_read_into.py",
    "sdk.bulk": "sdk/near/test_steps.py",
    "sdk.bulk_calls": "sdk/near/test_steps.py",
    "sdk.callbacks": "sdk/frameworks/test_lightning.py",
    "sdk.channel": "sdk/near/test_frames.py",
    "sdk.circuit_breaker": "sdk/test_parts.py",
    "sdk.connections": "sdk/test_client.py",
    "sdk.control": "sdk/test_client.py",
    "sdk.copying": "sdk/near/test_copying.py",
    "sdk.errors": "sdk/near/test_locate.py",
    "sdk.frames": "sdk/near/test_frames.py",
    "sdk.huggingface": "sdk/frameworks/test_huggingface.py",
    "sdk.lightning": "sdk/frameworks/test_lightning.py",
    "sdk.locate": "sdk/near/test_locate.py",
    "sdk.manifest": "sdk/test_parts.py",
    "sdk.names": "sdk/test_client.py",
    "sdk.delivery": "sdk/test_job.py",
    "sdk.job_settings": "sdk/test_arguments.py",
    "sdk.origin": "sdk/test_client.py",
    "sdk.owner_reads": "sdk/near/test_owner_reads.py",
    "sdk.owners": "sdk/near/test_owner_reads.py",
    "sdk.progress": "sdk/test_parts.py",
    "sdk.scoreboard": "sdk/test_job.py",
    "sdk.segments": "sdk/near/test_read_into.py",
    "sdk.shards.build": "sdk/shards/test_tar.py",
    "sdk.shards.ranged": "sdk/shards/test_tar.py",
    "sdk.shared": "sdk/test_client.py",
    "sdk.snapshot": "sdk/test_sampler.py",
    "sdk.stall": "sdk/test_parts.py",
    "sdk.state": "sdk/test_resume.py",
    "sdk.tag": "sdk/test_registration.py",
    "sdk.tensors": "sdk/near/test_tensors.py",
    "sdk.transfer": "sdk/test_client.py",
    "tiers.tier": "app/test_checkup.py",
}
"""Maps the name of a module, below the name of the product, to its test file below tests/."""

STEPS = 4
"""The number of other files that may be between a test file and a module that it imports indirectly."""

RUN_AS_PROCESSES = {"e2e", "cli", "demo"}
"""Directories whose tests run commands in processes of their own, and so do not import the tested code."""


def modules() -> dict[str, Path]:
    """Return the files of all modules, by name. Files __init__.py are left out: they only state laws of
    packages.
    """
    found = {}
    for name, folder in (("", ROOT / "shadeproxy"), ("sdk.", ROOT / "sdk" / "shadeproxy_sdk")):
        for path in folder.rglob("*.py"):
            if path.name not in {"__init__.py", "__main__.py"}:
                found[name + ".".join(path.relative_to(folder).with_suffix("").parts)] = path
    return found


MODULES = modules()


def test_the_table_lists_what_exists():
    assert [name for name in TABLE if name not in MODULES] == []
    assert [name for name, file in TABLE.items() if not (TESTS / file).is_file()] == []


def test_no_module_is_listed_that_has_a_test_of_its_name():
    assert [name for name in TABLE if of_its_name(name).exists()] == []


def test_every_module_has_a_test_file():
    without = [name for name in sorted(MODULES) if name not in TABLE and not of_its_name(name).exists()]
    assert without == [], "rename its test file, or add it to the table"


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_file_in_the_table_reaches_the_module(name):
    file = TESTS / TABLE[name]
    if file.relative_to(TESTS).parts[0] in RUN_AS_PROCESSES:
        return
    reached = set[Path]().union(*map(imported, [file, *conftests(file)]))
    for _ in range(STEPS):
        reached |= set[Path]().union(*map(imported, reached))
    assert MODULES[name] in reached


def of_its_name(name: str) -> Path:
    *folders, last = name.split(".")
    return TESTS.joinpath(*folders) / f"test_{last}.py"


def conftests(file: Path) -> list[Path]:
    """Return the conftest.py files with fixtures for a test file. tests/conftest.py is left out, because it
    imports the engine.
    """
    found = (folder / "conftest.py" for folder in file.parents if TESTS in folder.parents)
    return [path for path in found if path.exists()]


@cache
def imported(file: Path) -> frozenset[Path]:
    """Return those files of the repository that ``file`` imports, and those that an imported __init__.py
    imports.
    """
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found |= {path for name in names for path in files_of(name)}
    for path in [path for path in found if path.name == "__init__.py" and path != file]:
        found |= imported(path)
    return frozenset(found)


def files_of(name: str) -> list[Path]:
    top, *rest = name.split(".")
    folder = {
        "shadeproxy": ROOT / "shadeproxy",
        "shadeproxy_sdk": ROOT / "sdk" / "shadeproxy_sdk",
        "tests": TESTS,
    }
    if top not in folder:
        return []
    path = folder[top].joinpath(*rest)
    return [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
