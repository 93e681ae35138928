"""The README agrees with the code and with the committed figures."""

from make_readme import README, generated


def test_generated_parts_are_current() -> None:
    """Find in the README what `python tests/make_readme.py` would write."""
    assert README.read_text(encoding="utf-8") == generated(), "run: python tests/make_readme.py"


def test_no_machine_paths() -> None:
    """Find no path of a developer's machine in the README."""
    text = README.read_text(encoding="utf-8")
    assert not [word for word in text.split() if word.startswith(("/home/", "/root/", "/work/"))]
