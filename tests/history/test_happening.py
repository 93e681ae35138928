"""What happened, in the words that people ask with, and the sentences of changes."""

from typing import Any

import pytest

from opdbus.history import event_questions
from opdbus.history.change import Cause, Change, FieldChange, differences, without_values
from opdbus.history.change_sentence import events_of, of_change
from opdbus.state.object import Identity

TEXT = "systemd service web: Web server"


def changed(
    before: dict[str, Any] | None, after: dict[str, Any] | None, kind: str = "unit", cause: str = ""
) -> Change:
    """Make a change of an object, which came or left where one of its states is None."""
    what = "appeared" if before is None else "gone" if after is None else "changed"
    identity = Identity("probe", "host", kind, "web")
    return Change(identity, what, Cause(cause), differences(before or {}, after or {}))  # type: ignore[arg-type] -- one of three


CASES: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None, str]] = [
    ("unit", {"active_state": "active"}, {"active_state": "failed"}, "failed, stopped"),
    ("unit", {"active_state": "activating"}, {"active_state": "failed"}, "failed"),
    ("unit", {"active_state": "inactive"}, {"active_state": "active"}, "started"),
    ("unit", {"active_state": "active"}, {"active_state": "inactive"}, "stopped"),
    ("unit", {"active_state": "failed"}, {"active_state": "inactive"}, "changed"),
    ("unit", {"sub_state": "auto-restart"}, {"sub_state": "failed"}, "crash loop"),
    ("unit", {"unit_file_state": "disabled"}, {"unit_file_state": "enabled"}, "enabled"),
    ("unit", {"unit_file_state": "enabled"}, {"unit_file_state": "disabled"}, "disabled"),
    ("unit", {"unit_file_state": "enabled"}, {"unit_file_state": "masked"}, "masked, disabled"),
    ("unit", {"unit_file_state": "static"}, {"unit_file_state": "masked"}, "masked"),
    ("unit", {"unit_file_state": "masked"}, {"unit_file_state": "enabled"}, "unmasked, enabled"),
    (
        "unit",
        {"active_state": "active", "sub_state": "running", "result": "success"},
        {"active_state": "activating", "sub_state": "auto-restart", "result": "exit-code"},
        "stopped, failed, restarted",
    ),
    (
        "unit",
        {"active_state": "active", "result": "success"},
        {"active_state": "failed", "result": "exit-code"},
        "failed, stopped",
    ),
    ("unit", {"unit_file_state": "masked"}, {"unit_file_state": "disabled"}, "unmasked"),
    ("unit", None, {"active_state": "failed"}, "added, failed"),
    ("unit", {"active_state": "active"}, None, "removed"),
    ("package", None, {"version": "1"}, "installed, added"),
    ("package", {"version": "1.9"}, {"version": "1.10"}, "upgraded"),
    ("package", {"version": "2.0"}, {"version": "1.10"}, "downgraded"),
    ("package", {"version": "1"}, None, "removed"),
    ("listener", None, {"port": 1}, "opened, added"),
    ("listener", {"port": 1}, None, "closed, removed"),
    ("mount", {"used_percent": 50}, {"used_percent": 95}, "filled"),
    ("mount", {"used_percent": 95}, {"used_percent": 50}, "freed"),
    ("mount", {"used_percent": 20}, {"used_percent": 30}, "changed"),
    ("mount", {"read_only": True}, {"read_only": False}, "writable"),
    ("account", {"administrator": False}, {"administrator": True}, "administrator"),
    ("account", {"administrator": True}, {"administrator": False}, "no administrator"),
    ("account", {"can_log_in": True}, {"can_log_in": False}, "locked out"),
    ("account", {"can_log_in": False}, {"can_log_in": True}, "may log in"),
    ("account", {"groups": ["a"]}, {"groups": []}, "left"),
    ("unit", {"result": "success"}, {"result": "core-dump"}, "failed, killed"),
    ("file", {"mode": "0644"}, {"mode": "0666"}, "permissions"),
    ("file", {"mode": "0644", "sha256": "a"}, {"mode": "0600", "readable": False}, "permissions"),
    ("file", {"readable": False}, {"sha256": "a", "modified": False}, "permissions"),
    (
        "file",
        {"sha256": "a", "mode": "0644"},
        {"sha256": "b", "mode": "0600"},
        "edited, permissions",
    ),
    ("file", {"readable": False, "size": 1}, {"sha256": "a", "size": 2}, "edited, permissions"),
    ("file", {"sha256": "a"}, {"missing": True}, "edited"),
    ("interface", {"state": "up"}, {"state": "down"}, "went down"),
    ("file", {"size": 1}, {"size": 2}, "edited"),
    ("fact", {"hostname": "a"}, {"hostname": "b"}, "renamed"),
    ("lamp", {"colour": "red"}, {"colour": "blue"}, "changed"),
]


@pytest.mark.parametrize(("kind", "before", "after", "words"), CASES)
def test_a_change_has_words_for_what_happened(
    kind: str, before: dict[str, Any] | None, after: dict[str, Any] | None, words: str
) -> None:
    """Say what happened by the fields before and after."""
    assert events_of(changed(before, after, kind)) == words


@pytest.mark.parametrize(
    ("group", "members", "words"),
    [
        ("sudo", ["a", "b"], "administrator, joined"),
        ("sudo", [], "no administrator, left"),
        ("web", ["a", "b"], "joined"),
        ("web", [], "left"),
    ],
)
def test_a_group_of_administrators_makes_some(group: str, members: list[str], words: str) -> None:
    """Say of a group whose members may become root what became of those."""
    change = changed({"members": ["a"]}, {"members": members}, "group")
    identity = change.identity._replace(name=group)
    assert events_of(change._replace(identity=identity)) == words


def test_what_is_no_state_says_nothing() -> None:
    """Take fields of any shape: programs publish what they like."""
    before, after = {"active_state": ["up"], "members": 5}, {"active_state": "x", "members": [[1]]}
    for kind in ("unit", "group"):
        odd = changed(before, after, kind)
        odd = odd._replace(identity=odd.identity._replace(name="sudo"))
        assert of_change(odd, TEXT).sentence


@pytest.mark.parametrize(
    ("cause", "word"),
    [
        ("job:7 restart", "restarted"),
        ("job:7 restart, automatic", "restarted"),
        ("job:7 start", "started"),
        ("job:7 start by web.timer", "started"),
        ("job:7 start, failed", "failed"),
        ("exit", "restarted"),
        ("exit:SIGKILL", "failed, killed, restarted"),
        ("exit:SIGTERM", "killed, restarted"),
        ("exit:status 1", "failed, restarted"),
        ("exit:start limit", "failed"),
        ("start:failed", "failed"),
        ("start:ran", "started"),
        ("start", "restarted"),
        ("", "happened"),
    ],
)
def test_an_event_is_named_by_its_job(cause: str, word: str) -> None:
    """Say what was done to a thing that is as it was before."""
    event = Change(Identity("probe", "host", "unit", "web"), "event", Cause(cause), [])
    assert events_of(event) == word


def test_a_failed_unit_that_ran_well() -> None:
    """Say that a unit was started whose job left it neither failed nor running."""
    item = changed({"active_state": "failed"}, {"active_state": "inactive"})
    ran = item._replace(why=Cause("job:7 start"))
    assert events_of(ran) == "started"


@pytest.mark.parametrize(("what", "word"), [("drift", "drifted"), ("healed", "healed")])
def test_drift_has_words_of_its_own(what: Any, word: str) -> None:
    """Say that a thing is other than declared, and that it is as declared again."""
    item = changed({"active_state": "active"}, {"active_state": "failed"})
    assert events_of(Change(item.identity, what, item.why, item.fields)) == word


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("what deviates from what is declared?", ["drifted"]),
        ("which services crashed?", ["failed"]),
        ("the web server did not start", ["failed"]),
        ("what couldn't be started because it doesn't work", ["failed"]),
        ("packages that were updated", ["upgraded"]),
        ("which accounts were deleted", ["removed"]),
        ("what no longer starts at boot?", ["disabled"]),
        ("name resolution", []),
    ],
)
def test_a_question_says_what_happened(question: str, words: list[str]) -> None:
    """Find what happened in a question by other words for it, in any form."""
    found = event_questions.event_words(question)
    assert set(words) <= set(found)
    assert bool(words) == bool(found)


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("who got root access", "administrator"),
        ("who lost root access", "no administrator"),
        ("who is no longer an administrator", "no administrator"),
        ("sudo was taken away from somebody", "no administrator"),
        ("which ports are not opened any more", "closed"),
        # no failure, where what is declared is broken
        ("how did the declared state get broken?", "drifted"),
        ("what broke the declared state?", "drifted"),
    ],
)
def test_a_question_says_which_way(question: str, word: str) -> None:
    """Ask for the opposite where something is denied, or where what one may have is lost."""
    assert event_questions.event_words(question) == [word]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("what no longer starts at boot?", ["what"]),
        ("which services were restarted", ["which", "services"]),
        ("name resolution crashed", ["name", "resolution"]),
    ],
)
def test_the_rest_of_a_question_says_what_it_is_about(question: str, words: list[str]) -> None:
    """Leave out of a question all that says what happened."""
    assert event_questions.besides(question) == words


def test_a_question_is_met_by_the_sentence_of_a_change() -> None:
    """Compare what is asked for with what a sentence says, and with nothing else in it."""
    failed = changed({"active_state": "active"}, {"active_state": "failed"})
    sentence = of_change(failed, TEXT).sentence
    for question, share in (
        ("what crashed?", 1.0),
        ("what was masked?", 0.0),
        ("crashed and was upgraded", 0.5),
    ):
        wanted = event_questions.find_events(question)
        assert event_questions.share(wanted, sentence) == share
    assert event_questions.share([], sentence) == 0.0


def test_a_sentence_says_what_it_is_and_what_happened() -> None:
    """Begin with the object's text, then what happened, then the fields, states first."""
    item = changed({"active_state": "active", "mtu": 1500}, {"active_state": "failed", "mtu": 9000})
    assert of_change(item, TEXT).sentence == (
        f"{TEXT}; failed, stopped: active state active to failed, mtu changed"
    )


def test_sentences_repeat() -> None:
    """Leave out digests, and what numbers there are, so that what happens again says the same."""
    first = changed({"sha256": "a1", "n": "3 of 4"}, {"sha256": "b2", "n": "lost"}, "file")
    again = changed({"sha256": "c3", "n": "7 of 9"}, {"sha256": "d4", "n": "lost"}, "file")
    assert of_change(first, TEXT).sentence == of_change(again, TEXT).sentence
    assert "a1" not in of_change(first, TEXT).sentence


def test_what_is_kept_without_values_tells_none() -> None:
    """Name the fields, and no value."""
    item = changed({"active_state": "active"}, {"active_state": "hidden"})
    fields = without_values(item.fields)
    told = of_change(Change(item.identity, "changed", item.why, fields), "").sentence
    assert told == "host unit web; changed: active state changed"
    assert all(isinstance(field, FieldChange) for field in fields)
