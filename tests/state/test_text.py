"""A text says what an object is, in words, and nothing that means nothing."""

from typing import Any

import pytest

from opdbus.language.object_text import first_line, render
from opdbus.language.synonyms import gloss
from opdbus.state.flatten import Reader
from opdbus.state.object import FILE, Identity, StateObject


def item(plugin: str, kind: str, name: str, **properties: Any) -> StateObject:
    """Make an object as an observer reports it."""
    return StateObject(Identity(f"live:{plugin}", plugin, kind, name), properties)


def test_a_hash_is_no_part_of_a_text() -> None:
    """Leave out the name of an object that has none of its own, also where several are equal."""
    rules = [{"port": 80, "action": "accept"}] * 2
    _, objects = Reader().read({"firewall": {"rules": rules}})
    text = "firewall rule: allow traffic through, let packets pass; action accept, port 80"
    assert [render(item).text for item in objects] == [text] * 2


@pytest.mark.parametrize("name", ["~home", "0123456789ab", "~0123456789abc"])
def test_a_name_that_looks_like_a_hash_stays(name: str) -> None:
    """Keep every name that is not exactly of the form of a hash."""
    item = StateObject(Identity(FILE, "p", "k", name), {})
    assert render(item).text == f"p k {name}"


@pytest.mark.parametrize(
    "name",
    [
        *("python3-openssl", "systemd-timesync", "op-dbus.service", "ssh-from-branch", "22"),
        *("acme", "", "service", ".mount", "sshd.service.d"),
    ],
)
def test_the_glossary_knows_whole_names_only(name: str) -> None:
    """Say nothing of a name because a part of it is known."""
    assert gloss(name) == ""


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("sshd.service", "sshd"),
        ("SSHD", "sshd"),
        ("postgresql@15-main.service", "postgresql"),
        ("wg0", "wg"),
        ("linux-image-6.1.0-35-amd64", "linux-image"),
    ],
)
def test_suffix_instance_and_number_are_no_part_of_a_name(name: str, known: str) -> None:
    """Find a name without the suffix or instance of a unit, a number, or a version."""
    assert gloss(name) == gloss(known) != ""


def test_the_glossary_fills_gaps_only() -> None:
    """Describe with the glossary what has no description, and find others by its words too."""
    described = render(item("systemd", "unit", "sshd.service", description="Our front door"))
    assert described.text == f"systemd service sshd: Our front door\n{gloss('sshd')}"
    assert gloss("sshd") in described.words
    known = render(item("systemd", "unit", "sshd.service", description=gloss("sshd")))
    assert known.text == f"systemd service sshd: {gloss('sshd')}"
    bare = render(item("systemd", "unit", "sshd.service"))
    assert bare.text == f"systemd service sshd: {gloss('sshd')}"
    account = item("users", "account", "systemd-timesync", description="system account")
    assert render(account).text == "user account systemd-timesync: system account"


def test_an_account_is_told_with_its_groups() -> None:
    """Say what an account belongs to: `accounts of children` asks for the group kids."""
    ida = item("users", "account", "ida", description="Ida Berg, user account", groups=["kids"])
    assert render(ida).text == "user account ida: Ida Berg, user account; groups kids"


def test_what_is_on_an_interface_is_found_by_what_that_is_for() -> None:
    """Give addresses and routes the meaning of their interface's name, as words."""
    of_wg = item("net", "address", "10.0.0.1/24 on wg0", description="here", interface="wg0")
    assert gloss("wg0") in render(of_wg).words
    assert gloss("wg0") not in render(of_wg).text


def test_a_home_page_is_not_what_a_package_is_about() -> None:
    """Find no package by the words of the address that its authors have."""
    page = "https://gitlab.example.org/cheese"
    assert "gitlab" not in render(item("packages", "package", "cheese", homepage=page)).words


def test_an_owner_does_not_say_what_a_thing_is() -> None:
    """Explain the port of a listener, but not the user whom it runs as."""
    listener = item("net", "listener", "tcp 0.0.0.0:11211", port=11211, user="root", unit="x")
    assert render(listener).text == (
        "listening port tcp 0.0.0.0:11211: memory cache for web applications (memcached);"
        " unit x, user root, port 11211"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"active_state": "active", "sub_state": "running"}, {"active_state": "failed"}),
        ({"used_percent": 40, "free_bytes": 9}, {"used_percent": 95, "free_bytes": 1}),
        ({"state": "online", "idle": True}, {"state": "closing", "idle": False}),
        ({"status": "installed", "n_restarts": 1}, {"status": "half-configured", "n_restarts": 2}),
        ({"enabled": True, "result": "success"}, {"enabled": False, "result": "exit-code"}),
    ],
)
def test_values_that_move_are_words_but_no_text(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Embed nothing anew when something starts, stops, fails or fills up."""
    texts = [render(item("a", "b", "c", user="x", **values)) for values in (before, after)]
    assert texts[0].text == texts[1].text
    assert texts[0].words != texts[1].words


@pytest.mark.parametrize("key", ["full_name", "fullName", "FullName", "fullname", "owner.FullName"])
def test_keys_are_known_in_any_spelling(key: str) -> None:
    """Find the description under its key, however that is spelt."""
    assert render(item("a", "b", "c", **{key: "Ada"})).text == "a b c: Ada"


def test_a_line_that_was_cut_ends_with_a_word() -> None:
    """Show by dots that there is more, and cut no word in two."""
    assert first_line("a lamp\nmore") == "a lamp"
    assert first_line("word " * 48) == "word " * 47 + "word..."
    assert first_line("x" * 240) == "x" * 240 + "..."


FIELDS = {
    "description": "nightly backup",
    "state": "failed",
    "target": "/srv",
    "keep": {"days": 3, "kind": "weekly"},
    "hosts": ["a", "b"],
    "note": "robot in the cellar " * 20,
    "key": "[redacted]",
}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["state"], "backup job home; state failed"),
        (["keep", "state"], "backup job home; keep days 3, keep kind weekly, state failed"),
        (["keep.kind", "hosts"], "backup job home; keep kind weekly, hosts a, b"),
        (["state", "description"], "backup job home: nightly backup; state failed"),
        (["stat", "kee", "key", ""], "backup job home"),
        ([], "backup job home"),
        ("state", "backup job home: nightly backup"),
        (None, "backup job home: nightly backup"),
        ([3, "state", "state"], "backup job home; state failed"),
    ],
)
def test_a_publisher_says_what_describes_its_object(keys: Any, text: str) -> None:
    """Make the text of the properties that a published object names, in their order."""
    fields = {**FIELDS, "described_by": keys}
    found = render(StateObject(Identity("publish:x", "backup", "job", "home"), fields))
    assert found.text == text
    assert "described" not in found.words
    assert "cellar" in found.words
    # what the host says of itself, or a state file, is described as ever
    for source in (FILE, "live:x"):
        other = render(StateObject(Identity(source, "backup", "job", "home"), fields))
        assert other.text == "backup job home: nightly backup"


def test_a_long_description_is_cut() -> None:
    """Cut the text at the length of a line, whatever a publisher names."""
    fields = {**FIELDS, "described_by": ["note"]}
    found = render(StateObject(Identity("publish:x", "backup", "job", "home"), fields))
    assert found.text.startswith("backup job home; note robot in the cellar")
    assert len(found.text) <= 240
