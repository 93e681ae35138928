"""The README agrees with the code and with the committed figures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from make_readme import README, generated


def test_generated_parts_are_current() -> None:
    """Find in the README what `python tests/make_readme.py` would write."""
    assert README.read_text(encoding="utf-8") == generated(), "run: python tests/make_readme.py"


def test_no_machine_paths() -> None:
    """Find no path of a developer's machine in the README."""
    text = README.read_text(encoding="utf-8")
    assert not [word for word in text.split() if word.startswith(("/home/", "/root/", "/work/"))]


BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder for the examples' graphs, of which each is built once."""
    return tmp_path_factory.mktemp("state")


@pytest.mark.model
@pytest.mark.usefixtures("medium_model")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_examples_run(number: int, home: Path) -> None:
    """Run what the README shows of Python, as it stands but for where graphs are kept."""
    # not where this machine's daemon keeps its own, and in a precision that no gate must grade
    ours = f"opdbus.Embedder(state_dir={str(home)!r}, precision='fp32', "
    code = BLOCKS[number].replace("opdbus.Embedder(", ours)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_there_are_examples() -> None:
    """Find examples to run, so that the test above tests something."""
    assert len(BLOCKS) >= 2
