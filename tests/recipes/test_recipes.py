"""The scripts of docs/recipes run unchanged through the proxy. The routes are HTTP, and TLS with a private
authority whose certificate is not the server's.

A self-signed certificate is tried too. Its results are recorded, and never fail a test.
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
    # If the file had a client's name, Python would import it in place of the client.
    script = tmp_path / "recipe"
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
    """Return the environment of a client. A client that does not fit the others has an environment of its
    own.
    """
    own = venv.with_name(f"{venv.name}-{recipe.name}")
    return own if own.exists() else venv


def versions_of(recipe: Recipe, place: Path) -> str:
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    command = [place / "bin" / "python", "-c", ask, *recipe.packages]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    # The part behind "+" names a build, and no release.
    return ", ".join(
        f"{name} {version.partition('+')[0]}" for name, version in zip(recipe.packages, told, strict=True)
    )


def make_bucket(route: Route, bucket: str) -> None:
    # Make the directory itself, because boto3 in this process trusts none of the certificates.
    origin = next(item for item in route.served.arguments if item.startswith("origin.path="))
    (Path(origin.partition("=")[2]) / bucket).mkdir()


def hits(route: Route) -> int:
    totals = route.served.stats()["totals"]
    return totals["hits_ram"] + totals["hits_disk"]


def variables(route: Route, bucket: str, place: Path, home: Path) -> dict[str, str]:
    """Return the environment variables that docs/recipes/README.md exports."""
    exported = route.environment(home, trust=("AWS_CA_BUNDLE", "SSL_CERT_FILE"))
    path = f"{place / 'bin'}{os.pathsep}{exported['PATH']}"
    return exported | {"AWS_ENDPOINT_URL": route.endpoint, "BUCKET": bucket, "PATH": path}


def essence(said: str, route: Route, bucket: str, done: object) -> str:
    """Return the last line of the output that names an error, without the parts that differ from run to run.
    Libraries of Rust give the reason some lines later. In this case return the error's class and the reason.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*: ", line)]
    text = (raised or lines or ["nothing"])[-1]
    if reasons := dict.fromkeys(_REASONS.findall(said)):
        text = f"{text.partition(':')[0]}: {', '.join(reasons)}"
    text = text.replace(route.endpoint, "ENDPOINT").replace(route.host, "ENDPOINT").replace(bucket, "BUCKET")
    return f"exit {done}: {text}".replace("`", "'").replace("|", " ")[:_MESSAGE_LETTERS]


_REASONS = re.compile(r"CaUsedAsEndEntity|BadScheme")
