"""Question patterns: the kinds they ask for, and the penalties of other kinds."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.house import search_words

from opdbus.index.query import question_patterns, yes_or_no
from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.index.query.question_patterns import Form
from opdbus.language import kinds
from opdbus.language.tables import words_of
from opdbus.state.object import Identity, ObjectId, StateObject

UNIT = ObjectId("systemd", "unit", "a.service")
TIMER = ObjectId("systemd", "unit", "a.timer")
ACCOUNT = ObjectId("users", "account", "postgres")
MOUNT = ObjectId("mounts", "mount", "/tmp")  # noqa: S108 -- a name
FILE = ObjectId("files", "file", "/etc/fstab")
LISTENER = ObjectId("net", "listener", "tcp 0.0.0.0:22")
ADDRESS = ObjectId("net", "address", "192.0.2.1/24 on eth0")


def unit(name: str, **properties: str) -> StateObject:
    """Make an observed unit with some properties."""
    return StateObject(Identity("live:systemd", "systemd", "unit", name), properties)


@pytest.mark.parametrize(
    ("question", "object_id", "is_asked"),
    [
        ("is postgres running", UNIT, True),
        ("is postgres running", ACCOUNT, False),
        ("did the backup work?", UNIT, True),
        ("can the website be reached from outside", LISTENER, True),
        ("192.0.2.1", ADDRESS, True),
        ("running late", UNIT, False),
        ("is the account postgres running?", UNIT, False),
        ("has the nightly backup failed?", UNIT, True),
        ("has the nightly backup failed?", TIMER, False),
    ],
)
def test_a_question_about_a_state_asks_for_what_has_states(
    question: str, object_id: ObjectId, *, is_asked: bool
) -> None:
    """Raise services if it is asked whether something runs, and no kind where one is named."""
    assert (
        bool(kinds.of_object(object_id)[0] & question_patterns.of(question).asked.subject)
        == is_asked
    )


def test_only_what_can_have_a_value_is_asked_for_with_it() -> None:
    """Let a `network card` be a device, and an interface alone where it is down."""
    card, interface = (
        ObjectId("devices", "pci", "0000:00:03.0"),
        ObjectId("net", "interface", "eth0"),
    )
    for question, is_device in (("network card", True), ("network card that is down", False)):
        subject = question_patterns.of(question).asked.subject
        assert bool(kinds.of_object(card)[0] & subject) == is_device
        assert kinds.of_object(interface)[0] & subject


def test_what_is_scheduled_is_named_by_its_schedule() -> None:
    """Let `what runs every monday` name timers, without raising all of them."""
    asked, of_timer = (
        question_patterns.of("what runs every monday").asked,
        kinds.of_object(TIMER)[0],
    )
    assert of_timer & asked.named
    assert not of_timer & asked.subject


@pytest.mark.parametrize(
    ("question", "is_deed"),
    [
        ("what throws away old files in /tmp", True),
        ("who sends the reports?", True),
        ("checks certificates daily", True),
        ("what is in /tmp", False),
        ("what listens on all addresses", False),
        ("what runs as root", False),
        ("settings of the firewall", False),
        ("masks units", False),
        ("", False),
    ],
)
def test_a_question_for_what_acts_asks_for_no_passive_thing(
    question: str, *, is_deed: bool
) -> None:
    """Take more from mounts, ports and the like, and never raise them, if a verb begins."""
    form, of_mount = question_patterns.of(question), kinds.of_object(MOUNT)[0]
    assert bool(of_mount & form.damped) == is_deed
    assert any(of_mount & kind_ids for kind_ids, _ in form.less) == is_deed
    assert not (is_deed and of_mount & form.asked.named)


def test_a_question_for_a_place_finds_places_first() -> None:
    """Take nothing from files, and less than nothing from mounts, after `where`."""
    less = question_patterns.of("where are the backups").less
    taken = {
        object_id: [a for kind_ids, a in less if kinds.of_object(object_id)[0] & kind_ids]
        for object_id in (MOUNT, FILE, ACCOUNT, UNIT)
    }
    assert taken == {MOUNT: [-0.1], FILE: [0.0], ACCOUNT: [0.1], UNIT: []}


def test_where_something_is_configured_asks_for_files_alone() -> None:
    """Raise files, and no accounts, where it is asked where accounts are configured."""
    asked = question_patterns.of("where are the users configured").asked
    assert kinds.of_object(FILE)[0] & asked.subject
    assert not kinds.of_object(ACCOUNT)[0] & asked.named


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("which stork is running?", "white-stork.service"),
        ("is the black stork with a nest on a roof running?", "black-stork.service"),
        ("is any stork with a nest running?", "white-stork.service"),
    ],
)
def test_a_state_that_is_asked_about_counts_little(
    tmp_path: Path, question: str, first: str
) -> None:
    """Find the thing that a question names, whether or not it has the value."""

    def stork(name: str, state: str) -> StateObject:
        nest = " with a nest on a roof" if name == "black" else ""
        said = {"sub_state": state, "description": f"a {name} stork{nest}"}
        return StateObject(Identity("live:x", "systemd", "unit", f"{name}-stork.service"), said)

    others = [unit(f"other{n}.service") for n in range(20)]
    objects = [stork("black", "inactive"), stork("white", "running"), *others]
    assert search_words(tmp_path, objects, question)[0].object_id.name == first


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("which services run but are not enabled", {"walker.service"}),
        ("which services are running and not enabled?", {"walker.service"}),
        ("what runs but is not enabled", {"walker.service"}),
        ("which timers are enabled but not active", {"nightly.timer"}),
        ("units that are enabled but failed", {"web.service", "dump.timer"}),
        ("sockets not enabled but listening", {"call.socket"}),
        ("which services are enabled yet not running", set()),
        ("which services are failed or enabled", {"web.service", "mail.service"}),
        ("enabled and running services", {"mail.service"}),
    ],
)
def test_all_values_of_a_question_must_be_met(
    tmp_path: Path, question: str, names: set[str]
) -> None:
    """Answer with what has both states that a question joins, and with nothing if nothing has."""
    states = {
        "walker.service": ("active", "running", "disabled"),
        "mail.service": ("active", "running", "enabled"),
        "dead.service": ("inactive", "dead", "disabled"),
        "web.service": ("failed", "failed", "enabled"),
        "nightly.timer": ("inactive", "dead", "enabled"),
        "hourly.timer": ("active", "waiting", "enabled"),
        "dump.timer": ("failed", "failed", "enabled"),
        "call.socket": ("active", "listening", "disabled"),
        "bus.socket": ("active", "listening", "enabled"),
    }
    objects = [
        unit(name, active_state=active, sub_state=sub, unit_file_state=file)
        for name, (active, sub, file) in states.items()
    ]
    objects += [unit(f"other{n}.service", active_state="inactive") for n in range(150)]

    hits = search_words(tmp_path, objects, question)
    found = {hit.object_id.name for hit in hits if not hit.rating.is_weak}
    assert found >= names
    assert " or " in question or found == names


@pytest.mark.parametrize(("reader", "example"), question_patterns.PATTERNS)
def test_each_pattern_reads_its_example(reader: Callable[..., Form | None], example: str) -> None:
    """Read the example of each row of the table by this row, and by none before it."""
    words, asked = words_of(example), kinds.requested(example, STOP_WORDS)
    readers = [one for one, _ in question_patterns.PATTERNS]
    assert next(one for one in readers if one(example, words, asked)) is reader


@pytest.mark.parametrize("form", yes_or_no.FORMS)
def test_each_form_of_yes_or_no_reads_its_example(form: yes_or_no.Form) -> None:
    """Read the example of each form by that form, and the words of each state by their row."""
    asked = yes_or_no.read(f"{form.example}?")
    assert asked is not None
    assert asked.relation == form.relation
    for words, row in yes_or_no.states().items():
        state = yes_or_no.read(f"is nginx not {words}?")
        assert state is not None
        assert (state.state, state.names, state.is_negated) == (row, ["nginx"], True)
