"""What the documents say of a unit stays as it is while they are looked at again."""

from pathlib import Path

from opdbus.observe.packages.documents import Places
from opdbus.observe.systemd.unit_documents import UnitDocuments

NAME = "tidy.service"
TOLD = {"documentation": ["man:tidyd(8)"]}
FACTS = {"manual": "tidies each night"}


def write_page(tmp_path: Path, text: str) -> Places:
    """Write a manual page in a folder, and give where the documents are."""
    page = tmp_path / "man8" / "tidyd.8"
    page.parent.mkdir(exist_ok=True)
    page.write_text(f".TH TIDY 8\n.SH NAME\ntidyd \\- {text}\n.SH DESCRIPTION\n")
    return Places(tmp_path, tmp_path / "dpkg", tmp_path, "no-rpm", ())


async def test_what_is_known_counts_until_the_next_look(tmp_path: Path) -> None:
    """A unit keeps its facts, of which changes are told, until it is gone or looked at again."""
    documents = UnitDocuments(write_page(tmp_path, FACTS["manual"]))
    assert documents.facts_of(NAME, TOLD) == {}
    assert await documents.look_up() == [NAME]
    documents.outdate([NAME])
    assert documents.facts_of(NAME, TOLD) == FACTS
    assert documents.has_new.is_set()
    assert await documents.look_up() == []
    write_page(tmp_path, "tidies each day")
    documents.outdate([NAME])
    assert documents.facts_of(NAME, TOLD) == FACTS
    assert await documents.look_up() == [NAME]
    assert documents.facts_of(NAME, TOLD) == {"manual": "tidies each day"}
    # one of the same name is another one
    documents.forget(NAME)
    assert documents.facts_of(NAME, TOLD) == {}
    assert documents.has_new.is_set()
