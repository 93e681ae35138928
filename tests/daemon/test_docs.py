"""README.md, docs/ and their like agree with the code and each other."""

import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from conftest import ROOT
from harness.running import run_program
from harness.whole_cli import root
from scripts.make_docs import FILES, generated

from opdbus import config

TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}
EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path, text in TEXTS.items()
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    )
]


def test_generated_parts_are_current() -> None:
    """Every file holds what `make docs` would write."""
    stale = [path.name for path, text in generated().items() if text != path.read_text("utf-8")]
    assert not stale, "run: make docs"


@pytest.mark.parametrize(
    ("name", "most"), [("README.md", 80), ("CHANGELOG.md", 120), ("docs/architecture.md", 150)]
)
def test_first_pages_are_short(name: str, most: int) -> None:
    """The README has at most 80 lines, the changelog 120, the architecture 150."""
    assert TEXTS[ROOT / name].count("\n") <= most


@EACH
def test_cells_of_tables_are_short(path: Path) -> None:
    """A cell of a table has at most 25 words: what takes more stands below the table."""
    cells = (
        cell
        for line in TEXTS[path].splitlines()
        if line.startswith("|")
        for cell in re.split(r"(?<!\\)\|", line)
    )
    assert not [cell for cell in cells if len(cell.split()) > 25]


@EACH
def test_no_machine_paths(path: Path) -> None:
    """No text names a path of a developer's machine."""
    words = TEXTS[path].split()
    assert not [word for word in words if word.startswith(("/home/", "/root/", "/work/"))]


@EACH
def test_links_lead_somewhere(path: Path) -> None:
    """Every link to a file finds it, and every link to a heading finds that."""
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[path]):
        if target.startswith("https://"):
            continue
        name, _, heading = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        assert not heading or heading in headings(file), target


def headings(path: Path) -> set[str]:
    """Give the anchors of a file's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in found}


@EACH
def test_commands_are_real(path: Path) -> None:
    """Every command of op-dbus that is shown exists, with every option that it is given."""
    for line in shown(TEXTS[path]):
        command: click.Command = root
        for word in words_of(line):
            if isinstance(command, click.Group) and not word.startswith("-"):
                # whatever is no command is an object
                name = word if word in command.commands or command.name != "history" else "show"
                assert name in command.commands, line
                command = command.commands[name]
            elif re.fullmatch(r"-[a-z]|--[a-z][a-z-]*", word):
                options = {name for param in command.params for name in param.opts}
                assert word in options | {"--help", "--version"}, line


def shown(text: str) -> list[str]:
    """Give what is written as a command of op-dbus, in blocks and in the middle of sentences."""
    lines = re.findall(r"^    (?:.*\| )?(op-dbus .*)$", text, re.MULTILINE)
    return lines + re.findall(r"`(op-dbus [^`]+)`", text)


def words_of(line: str) -> list[str]:
    """Give the words after `op-dbus`, without the shell's comments and placeholders."""
    words = shlex.split(line, comments=True)[1:]
    return words[: words.index("|")] if "|" in words else words


@EACH
def test_settings_and_targets_are_real(path: Path) -> None:
    """Every variable and every target of make that is named exists."""
    known = {setting.variable for setting in config.SETTINGS} | {config.CONFIG_FILE_VARIABLE}
    assert set(re.findall(r"OP_DBUS_[A-Z_]+", TEXTS[path])) <= known
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", TEXTS[path], re.MULTILINE)) <= targets


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder for the examples' graphs, of which each is built once."""
    return tmp_path_factory.mktemp("state")


@pytest.mark.model
@pytest.mark.usefixtures("medium_model")
@pytest.mark.parametrize("block", BLOCKS)
def test_examples_run(block: str, home: Path) -> None:
    """What is shown of Python runs, as it stands but for where graphs are kept."""
    # not where this machine's daemon keeps its own, and in a precision that no gate must grade
    ours = f"opdbus.Embedder(state_dir={str(home)!r}, precision='fp32', "
    code = block.replace("opdbus.Embedder(", ours)
    done = run_program([sys.executable, "-W", "error", "-c", code])
    assert done.returncode == 0, done.stderr


def test_there_are_examples() -> None:
    """There are examples to run, so that the test above tests something."""
    assert len(BLOCKS) >= 3
