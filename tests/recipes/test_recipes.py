"""The scripts of docs/recipes, as they stand there, through the proxy: over HTTP, and over TLS with a private
authority whose certificate is not the server's.

A self-signed certificate is tried too. Its results are noted, and never fail a test.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.recipes import Recipe, read_recipes
from tests.support.routes import Route

from .report import OK, ROUTES

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(400)]

_LIMIT_S = 180
_MESSAGE_LETTERS = 200
_WITH_RUN = [recipe for recipe in read_recipes() if not recipe.untested]


@pytest.mark.parametrize("route_name", ROUTES)
@pytest.mark.parametrize("recipe", _WITH_RUN, ids=lambda recipe: recipe.name)
def test_a_recipe(recipe, route_name, stage, tmp_path):
    route, record, place = stage.routes[route_name], stage.record, environment_of(recipe, stage.venv)
    record.versions[recipe.name] = versions_of(recipe, place)
    bucket = f"{recipe.name}-{route_name}"
    make_bucket(route, bucket)
    before = hits(route)
    script = tmp_path / "recipe"  # with a client's name it would be imported in the client's place
    script.write_text(recipe.script)
    program = str(place / "bin" / "python") if recipe.language == "python" else "bash"
    log = tmp_path / "log"
    with log.open("wb") as out:
        try:
            done = subprocess.run(
                [program, str(script)], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd=tmp_path, env=variables(route, bucket, place, tmp_path), check=False, timeout=_LIMIT_S,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            done = "no end"
    said = log.read_text(errors="replace")
    hit = hits(route) > before
    record.outcomes[recipe.name, route_name] = OK if done == 0 and hit else essence(said, route, bucket, done)
    if route_name == "self-signed":
        return
    if recipe.fails_over_http and route_name == "http":
        assert done != 0, f"the page says that it fails:\n{said}"
        assert all(word in said for word in recipe.fails_over_http), said
    else:
        assert done == 0, said
        assert hit, f"nothing was read from the cache:\n{said}"


def environment_of(recipe: Recipe, venv: Path) -> Path:
    """The client's own environment, where it does not fit beside the others, else theirs."""
    own = venv.with_name(f"{venv.name}-{recipe.name}")
    return own if own.exists() else venv


def versions_of(recipe: Recipe, place: Path) -> str:
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    command = [place / "bin" / "python", "-c", ask, *recipe.packages]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    # The part after the plus names a build, not a release.
    return ", ".join(
        f"{name} {version.partition('+')[0]}" for name, version in zip(recipe.packages, told, strict=True)
    )


def make_bucket(route: Route, bucket: str) -> None:
    # The directory itself: boto3 of this process trusts none of the certificates.
    origin = next(item for item in route.served.arguments if item.startswith("origin.path="))
    (Path(origin.partition("=")[2]) / bucket).mkdir()


def hits(route: Route) -> int:
    totals = route.served.stats()["totals"]
    return totals["hits_ram"] + totals["hits_disk"]


def variables(route: Route, bucket: str, place: Path, home: Path) -> dict[str, str]:
    """Return the variables that docs/recipes/README.md exports."""
    exported = route.environment(home, trust=("AWS_CA_BUNDLE", "SSL_CERT_FILE"))
    path = f"{place / 'bin'}{os.pathsep}{exported['PATH']}"
    return exported | {"AWS_ENDPOINT_URL": route.endpoint, "BUCKET": bucket, "PATH": path}


def essence(said: str, route: Route, bucket: str, done: object) -> str:
    """Return the last line that names an error, without what differs from run to run; or its class, and what
    libraries of Rust give as the reason some lines later.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*: ", line)]
    text = (raised or lines or ["nothing"])[-1]
    if reasons := dict.fromkeys(_REASONS.findall(said)):
        text = f"{text.partition(':')[0]}: {', '.join(reasons)}"
    text = text.replace(route.endpoint, "ENDPOINT").replace(route.host, "ENDPOINT").replace(bucket, "BUCKET")
    return f"exit {done}: {text}".replace("`", "'").replace("|", " ")[:_MESSAGE_LETTERS]


_REASONS = re.compile(r"CaUsedAsEndEntity|BadScheme")
