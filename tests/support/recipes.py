"""The pages of docs/recipes. Each page is about one client, and has one script."""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "recipes"
INDEX = FOLDER / "README.md"
REQUIREMENTS = FOLDER / "requirements.txt"
_SCRIPT = re.compile(r"^```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    """One recipe, which is a document in docs/recipes.

    The fields hold the document's script, and its lines "Needs:", "Install:", "Not tested here:" and "Fails
    over HTTP:".
    """

    name: str
    title: str
    language: str
    """The language of the script: "python" or "bash"."""
    script: str
    needs: str
    packages: tuple[str, ...]
    untested: str
    """The reason why tests do not run the script; "" if they do."""
    fails_over_http: tuple[str, ...]
    """Words in the message with which the script must fail over HTTP; empty if it must succeed."""


def read_recipes() -> list[Recipe]:
    read = [read_recipe(path) for path in FOLDER.glob("*.md") if path != INDEX]
    return sorted(read, key=lambda recipe: recipe.title.casefold())


def read_recipe(path: Path) -> Recipe:
    text = path.read_text()
    scripts = _SCRIPT.findall(text)
    assert len(scripts) == 1, f"{path.name} has {len(scripts)} scripts"
    ((language, script),) = scripts
    install = re.sub(r"\[\w+\]", "", _line(text, "Install"))
    return Recipe(
        name=path.stem,
        title=text.partition("\n")[0].removeprefix("# "),
        language=language,
        script=script,
        needs=_line(text, "Needs"),
        packages=tuple(install.strip("`").split()[2:]),
        untested=_line(text, "Not tested here"),
        fails_over_http=tuple(re.findall(r"`([^`]+)`", _line(text, "Fails over HTTP"))),
    )


def _line(text: str, word: str) -> str:
    found = re.search(rf"^{word}: (.+?)\n\n", text, re.DOTALL | re.MULTILINE)
    return found[1].replace("\n", " ") if found else ""
