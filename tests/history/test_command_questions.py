"""Questions for commands that were run as root."""

import pytest

from opdbus.history import acts, command_questions
from opdbus.history.command_questions import FORMS, CommandQuestion, read_question
from opdbus.state.object import ObjectId

ALL = CommandQuestion()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.example)
def test_each_form_has_its_example(form: command_questions.Form) -> None:
    """The first form that an example matches is its own."""
    first = next(one for one in FORMS if one.pattern.match(form.example))
    assert first == form


@pytest.mark.parametrize(
    "question",
    [
        "Who has run anything as root?",
        "who executed commands with sudo?",
        "which user ran a command as the superuser?",
        "which commands have been executed?",
        "show me the commands that were run with sudo",
        "list all commands run as root",
        "what has been done as root?",
        "what did anybody do with sudo?",
        "what commands did people run as root?",
        "the last root commands",
        "who had a root shell?",
        "who has run commands as root lately?",
        "list root commands",
    ],
)
def test_all_commands_are_asked_for(question: str) -> None:
    """A question for what anybody ran as root is answered by all commands and by nothing else."""
    assert read_question(question) == ALL


@pytest.mark.parametrize(
    "question",
    [
        "which services run as root?",
        "who changed sshd_config?",
        "what runs as root?",
        "who may use sudo?",
        "is bob in the group sudo?",
        "which command runs at night?",
        "what was installed?",
        "who stopped cron?",
    ],
)
def test_other_questions_are_none_for_commands(question: str) -> None:
    """What runs, who may, and who did something to an object are no questions for commands."""
    assert read_question(question) is None


def _act(command: str, program: str = "sudo") -> acts.Act:
    return acts.Act("bob", 1, program, command, "/root", 7)


@pytest.mark.parametrize(
    ("command", "events", "is_try"),
    [
        ("/usr/bin/systemctl disable --now cron", {"stopped"}, True),
        ("systemctl disable cron", {"stopped"}, False),
        ("systemctl disable cron", {"disabled"}, True),
        ("systemctl enable cron", {"disabled"}, False),
        ("systemctl restart cron.service", {"restarted"}, True),
        ("systemctl start cron", {"restarted"}, False),
        ("systemctl restart cron", {"reloaded"}, False),
        ("systemctl reload-or-restart cron", {"reloaded"}, True),
        ("service cron reload", {"reloaded"}, True),
        ("systemctl start cron", {"failed"}, True),
        ("systemctl status cron", {"stopped"}, False),
        ("systemctl stop cron-daily", {"stopped"}, False),
        ("sh -c 'systemctl stop cron; true'", {"stopped"}, True),
    ],
)
def test_a_command_tries_what_its_verb_says(
    command: str, events: set[str], *, is_try: bool
) -> None:
    """A command tries an event of the unit that it names, whether it came about or not."""
    assert acts.tries(_act(command), ObjectId("systemd", "unit", "cron.service"), events) is is_try


@pytest.mark.parametrize(
    ("command", "object_id", "events", "is_try"),
    [
        ("apt install curl", ObjectId("packages", "package", "curl"), {"installed"}, True),
        ("apt remove curl", ObjectId("packages", "package", "curl"), {"installed"}, False),
        ("apt remove curl", ObjectId("packages", "package", "curl"), {"removed"}, True),
        ("userdel eve", ObjectId("users", "account", "eve"), {"removed"}, True),
        ("vim /etc/hosts", ObjectId("files", "file", "/etc/hosts"), {"edited"}, True),
    ],
)
def test_a_command_tries_to_change_what_it_names(
    command: str, object_id: ObjectId, events: set[str], *, is_try: bool
) -> None:
    """Other objects are removed by programs that remove, and changed in other ways by others."""
    assert acts.tries(_act(command), object_id, events) is is_try
