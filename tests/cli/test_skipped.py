"""What readers do not understand: counted, named by file and line, and bounded."""

from pathlib import Path

from harness.observing import Source, observed
from test_status import VALUES

from opdbus.cli.status import describe_host as shown
from opdbus.observe.core.file_reading import text_of
from opdbus.observe.core.skipped import Skipped


def test_the_first_places_are_named() -> None:
    """A note names five places of each kind, and counts the others; without any it is empty."""
    skipped = Skipped()
    assert skipped.sentence == ""
    for number in range(1, 2008):
        skipped.line("/etc/passwd", number)
    skipped.file(Path("/etc/cron.d") / ("x" * 1000))
    skipped.row("route of the address family 28")
    lines, rows, files = skipped.sentence.split("; ")
    assert lines.startswith("2,007 lines not understood: /etc/passwd:1, /etc/passwd:2, ")
    assert lines.endswith("/etc/passwd:5 and 2,002 more")
    assert rows == "1 row not understood: route of the address family 28"
    assert files.startswith("1 file not read or not understood: ...xx")
    assert len(files) < 300


def test_a_name_commands_no_terminal() -> None:
    """Control characters and secrets of a path are not in the note."""
    skipped = Skipped()
    skipped.line("/etc/a\x1b[2J\n\u202eb", 3)
    skipped.line("/etc/password=hunter2correct", 4)
    assert skipped.sentence.startswith("2 lines not understood: /etc/a?[2J??b:3, /etc/password=")
    assert "hunter2" not in skipped.sentence


def test_files_that_are_not_read(tmp_path: Path) -> None:
    """A file that is there and is not read to its end is noted; one that is missing is not."""
    (tmp_path / "long").write_text("x" * 10)
    (tmp_path / "circle").symlink_to("circle")
    skipped = Skipped()
    texts = {name: text_of(tmp_path / name, 9, skipped) for name in ("long", "circle", ".", "no")}
    assert texts == {"long": "x" * 9, "circle": "", ".": "", "no": ""}
    assert skipped.sentence == (
        f"3 files not read or not understood: {tmp_path}/long, {tmp_path}/circle, {tmp_path}"
    )


async def test_a_note_of_several_parts_reaches_the_status(tmp_path: Path) -> None:
    """`op-dbus status` shows one note for all that an observer reads, with what it says besides."""
    source = Source()
    async with observed(tmp_path, source.observer) as host:
        await host.until_shown("house/lamp/desk")
        one, two = Skipped(), Skipped()
        one.line("/etc/cron.d/backup", 7)
        two.line("/etc/passwd", 31)
        source.report.busy("lamps are far away")
        source.report.skip("crontab", one)
        source.report.skip("account", two)
        said = "2 lines not understood: /etc/cron.d/backup:7, /etc/passwd:31"
        assert host.status.detail == f"lamps are far away; {said}"
        note = shown(VALUES | {"Observers": [list(host.status)]})["Note"]
        assert note == f"lamps: lamps are far away; {said}"
        # a newer reading of a part replaces what was noted of it
        source.report.skip("crontab", Skipped())
        source.report.busy("")
        assert host.status.detail == "1 line not understood: /etc/passwd:31"
