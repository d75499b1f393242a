"""``shadeproxy check``: tries everything that ``serve`` needs, one thing after another. Each row says what
was found and, after a failure, what to change.

The checks create nothing: for a directory that does not exist, they examine the nearest existing parent. If a
proxy already runs with the same configuration, the locks and ports that it holds are no failure.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from shadeproxy.api.s3 import COMPILED
from shadeproxy.app.address_space import address_space_limit
from shadeproxy.app.certificate_diagnosis import CertificateFacts, certificate_findings, expiry_s
from shadeproxy.app.fitting import (
    descriptor_limit,
    judge_address_space,
    judge_descriptors,
    judge_hint_memory,
    judge_memory,
    judge_workers,
    tier_settings,
)
from shadeproxy.app.media import ghost_share
from shadeproxy.app.origins import build_origin
from shadeproxy.app.otel import INSTALL, is_installed
from shadeproxy.app.tls import refuse_encrypted
from shadeproxy.app.worker_fills import why_no_fills
from shadeproxy.cli.directories import DirectoryLooks, check_holders, find_holders, hanging
from shadeproxy.cli.looks import Look
from shadeproxy.cli.rows import CheckRow
from shadeproxy.config import Settings
from shadeproxy.config.fields import Address
from shadeproxy.config.sections import AUTO, OWN_NAMESPACE
from shadeproxy.core import interpreter
from shadeproxy.core.cores import available_cores
from shadeproxy.core.errors import (
    ConfigError,
    CredentialsUnresolved,
    NoCredentials,
    NotS3,
    OriginAnswer,
    OriginError,
)
from shadeproxy.core.memory_limit import memory_limit
from shadeproxy.core.units import format_size

CREDENTIAL_CODES = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
)

WRONG_KEYS = (
    "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the AWS files, or what [origin.credentials] names"
)
_UNOPTIMISED = "; misses cost about a sixth more CPU than with one that is, as those of distributions are"
_INTERPRETED = (
    "interpreted; hits cost less CPU once a C compiler and the Python headers are there "
    "and shadeproxy is installed again"
)


def run_checks(
    settings: Settings, bucket: str = "", *, looks: DirectoryLooks | None = None, with_origin: bool = True
) -> Iterator[CheckRow]:
    """Yield the row of each check in turn. A failure does not end the checks. ``looks``: those at the
    directories, if they have begun. ``with_origin``: ask the origin too.
    """
    looks = looks or DirectoryLooks(settings)
    yield CheckRow("configuration", ok=True, detail="understood")
    yield CheckRow("python", ok=True, detail=_python())
    yield CheckRow("lane", ok=True, detail="compiled" if COMPILED else _INTERPRETED)
    yield _check_secrets(settings)
    yield _check_namespaces(settings)
    if settings.s3.tls.cert:
        yield _check_tls(settings.s3.tls.cert, settings.s3.tls.key)
    if settings.telemetry.otel.enabled:
        yield _check_otel()
    yield _check_workers(settings)
    yield _check_memory(settings, looks.hanging())
    yield _check_descriptors(settings)
    yield _check_histories(settings)
    yield from looks.rows()
    holders = find_holders(settings, looks.seen())
    yield from check_holders(holders)
    ours = {place for holder in holders for place in holder.listens_at}
    for key, address in settings.listeners.items():
        if key in ours:
            yield CheckRow(key, ok=True, detail=f"{address} is taken by that process")
        else:
            yield _check_port(key, address)
    if settings.cluster.name:
        from shadeproxy.cli.cluster_check import check_cluster  # noqa: PLC0415  only checks of a cluster need it

        yield from asyncio.run(_collect(check_cluster(settings)))
    if with_origin:
        yield from _asked_origin(settings, bucket)


def _asked_origin(settings: Settings, bucket: str) -> Iterator[CheckRow]:
    path = Path(settings.origin.path)
    if settings.origin.kind == "file" and Look(path.exists).hangs():
        yield hanging("origin.path", path, name="origin")
    else:
        yield from asyncio.run(_collect(_check_origin(settings, bucket)))


def _python() -> str:
    return interpreter.version() + _UNOPTIMISED * (interpreter.is_optimised() is False)


def _check_secrets(settings: Settings) -> CheckRow:
    readers: list[Callable[[], object]] = [
        settings.origin.credentials.resolve,
        settings.control.resolve_token,
        settings.cluster.resolve_secrets,
        settings.cluster.resolve_engine_password,
        settings.telemetry.otel.resolve_headers,
    ]
    for client in settings.auth.clients:
        readers += [client.secret, client.upstream.resolve]
    for read in readers:
        try:
            read()
        except ConfigError as error:
            return CheckRow("secrets", ok=False, detail=str(error), change="make the secret available")
    return CheckRow("secrets", ok=True, detail="every reference can be read")


def _check_otel() -> CheckRow:
    if is_installed():
        return CheckRow("telemetry.otel", ok=True, detail="the SDK of OpenTelemetry is installed")
    return CheckRow("telemetry.otel", ok=False, detail="needs packages that are missing", change=INSTALL)


def _check_namespaces(settings: Settings) -> CheckRow:
    if not settings.origin.names_by_account:
        return CheckRow("bucket names", ok=True, detail="each means one bucket for everybody")
    clients = [client for client in settings.auth.clients if not client.upstream.is_shared]
    told = [
        f"{client.access_key} in {settings.namespace_of(client) or OWN_NAMESPACE}" for client in clients[:10]
    ]
    if len(clients) > len(told):
        told.append(f"and {len(clients) - len(told)} more")
    others = f"; clients with upstreams of their own read: {', '.join(told)}" if told else ""
    return CheckRow("bucket names", ok=True, detail=f"belong to accounts{others}")


def _check_tls(cert: str, key: str) -> CheckRow:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=refuse_encrypted)
    except (OSError, ssl.SSLError) as error:
        return CheckRow(
            "s3.tls", ok=False, detail=f"{cert}, {key}: {error}", change="name PEM files that fit each other"
        )
    facts = CertificateFacts(expiry_s(Path(cert).read_bytes()), time.time())
    if (finding := next(certificate_findings(facts), None)) is None:
        return CheckRow("s3.tls", ok=True, detail=cert)
    expired = finding.severity == "wrong"
    return CheckRow("s3.tls", ok=not expired, detail=f"{cert}: {finding.cause}", change=finding.remedy)


def _check_workers(settings: Settings) -> CheckRow:
    number = settings.s3.processes
    verdict = judge_workers(settings, available_cores())
    detail = verdict.cause.removeprefix("s3.workers: ")
    detail = detail or (f"{number} processes serve" if number > 1 else "one process serves")
    if settings.s3.workers == AUTO:
        detail += f", chosen for {available_cores()} cores"
    if why := why_no_fills(settings):
        detail += f"; {why}"
    return CheckRow("s3.workers", ok=True, detail=detail, change=verdict.remedy)


def _check_memory(settings: Settings, hanging: list[str]) -> CheckRow:
    if hanging:
        return CheckRow("memory", ok=True, detail=f"not checked, because {hanging[0]} does not answer")
    limit = memory_limit()
    verdict = judge_memory(settings, limit)
    if not verdict.possible:
        return CheckRow(
            "memory", ok=False, detail=verdict.cause.removeprefix("memory: "), change=verdict.remedy
        )
    verdict = judge_address_space(settings, address_space_limit())
    if not verdict.possible:
        return CheckRow("memory", ok=False, detail=verdict.cause, change=verdict.remedy)
    verdict = judge_hint_memory(settings, limit)
    detail = verdict.cause.removeprefix("hints: ")
    detail = detail or f"{limit.place} allows {format_size(limit.limit_bytes)}"
    return CheckRow("memory", ok=True, detail=detail, change=verdict.remedy)


def _check_descriptors(settings: Settings) -> CheckRow:
    limit = descriptor_limit()
    verdict = judge_descriptors(settings, limit)
    detail = verdict.cause.removeprefix("descriptors: ") or f"{limit} files and connections may be open"
    return CheckRow("descriptors", ok=verdict.possible, detail=detail, change=verdict.remedy)


def _check_histories(settings: Settings) -> CheckRow:
    total_bytes = sum(tier.capacity_bytes for tier in tier_settings(settings))
    taken = f"{format_size(total_bytes * ghost_share(settings))} of the capacity, in memory"
    return CheckRow("read histories", ok=True, detail=taken if ghost_share(settings) else "take no capacity")


def _check_port(key: str, address: Address) -> CheckRow:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # Allow reuse of the address, as servers do. Otherwise a port would count as taken for some time after
        # its last connections were closed.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address.host, address.port))
        except OSError as error:
            return CheckRow(
                key,
                ok=False,
                detail=f"{address} cannot be bound: {error.strerror}",
                change=f"stop what listens there (another shadeproxy?), or set {key}",
            )
    return CheckRow(key, ok=True, detail=f"{address} is free")


async def _check_origin(settings: Settings, bucket: str) -> AsyncIterator[CheckRow]:
    name = "origin"
    try:
        origin = build_origin(settings).origin
        try:
            yield CheckRow(name, ok=True, detail=await origin.probe())
            if bucket:
                name = f"bucket {bucket}"
                page = await origin.list_objects(bucket, "", max_keys=1)
                yield CheckRow(name, ok=True, detail="can be listed" if page.entries else "is empty")
        finally:
            await origin.aclose()
    except (OriginError, ConfigError) as error:
        yield _failed(name, settings, error)


def names_no_store(settings: Settings) -> bool:
    """Return whether the settings name no origin. The origin is then AWS S3, the default."""
    return settings.origin.kind == "s3" and not settings.origin.endpoint


def _failed(name: str, settings: Settings, error: OriginError | ConfigError) -> CheckRow:
    """Return the row for an origin that failed its check. The row names the endpoint that was asked."""
    detail, change = str(error), _change(error)
    tried = "AWS S3" if names_no_store(settings) else settings.origin.endpoint or settings.origin.path
    if isinstance(error, OriginError):
        if isinstance(error, NoCredentials):
            # Leave the hint out of the detail, because the row shows it as the advice.
            detail = detail.removesuffix(f": {error.hint}")
        if tried.rstrip("/") not in detail:
            detail = f"{tried}: {detail}"
        if names_no_store(settings):
            change += "; origin.endpoint is not set, which means AWS S3: set it where that is not meant"
    return CheckRow(name, ok=False, detail=detail, change=change)


def _change(error: OriginError | ConfigError) -> str:
    if isinstance(error, ConfigError):
        return "correct the setting"
    if isinstance(error, OriginAnswer):
        return _change_of(error)
    if isinstance(error, NotS3 | CredentialsUnresolved):
        return error.hint
    return "check origin.endpoint, the network, and that the server runs"


def _change_of(error: OriginAnswer) -> str:
    if isinstance(error, NoCredentials):
        return error.hint
    if error.code in CREDENTIAL_CODES:
        return f"{WRONG_KEYS}; the origin does not know this key or its secret"
    if error.code == "NoSuchBucket":
        return "create the bucket at the origin, or name another"
    if error.status in {401, 403}:
        return "allow these credentials to list, or name others (or some at all) in [origin.credentials]"
    return "check origin.endpoint and origin.region"


async def _collect(rows: AsyncIterator[CheckRow]) -> list[CheckRow]:
    return [row async for row in rows]
