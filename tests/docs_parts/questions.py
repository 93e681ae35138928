"""How well questions about a whole host are answered."""

from docs_parts.tables import newest, table

_QUESTIONS = """\
From `benchmarks/results/{file}` (`benchmarks/host/questions.py`), on {machine}: {questions}
questions that administrators ask about a host, its values among them, asked of a host that was
booted from this machine's files, populated by `benchmarks/host/populate.py` and observed without a
state file: {objects:,} objects of {observers} observers. The questions were written before anybody
saw the answers. What answered badly was looked at for one half of them only; the other half was
held back, and says more about new questions. MRR@10 is the mean reciprocal rank of the first right
answer, 0 if it is not among the first ten.

{rows}"""
_NAMES = {
    "held": "held back",
    "dev": "looked at",
    "value": "about a value: failed, nearly full, which port, who may",
    "what": "what something is or is for",
    "where": "where something is",
    "identifier": "names, addresses, numbers",
    "all": "**all**",
}


_DAY = """\
From `benchmarks/results/{file}` (`benchmarks/host/day.py`), on {machine}: {acts} acts in a booted
host, services started, stopped, broken and masked, packages installed and removed, accounts,
addresses, mounts, timers and settings changed. {questions} questions, each in three wordings, are
asked with `op-dbus changes` by a member of the group. 48 were written before anybody saw a row of
the day, two before anybody saw their answers; of one the right rows were widened afterwards. One
half was held back, as below.

{rows}"""


def day_questions() -> str:
    """Make the table of the newest report of benchmarks/host/day.py."""
    found = newest("day")
    assert found, "no report of benchmarks/host/day.py is committed"
    file, report = found
    sets = {
        name.replace("dev", "looked at").replace("held", "held back"): figures
        for name, figures in report["by set"].items()
    }
    rows = (
        (
            name,
            str(figures["questions"]),
            ", ".join(map(str, figures["in the first three"])),
            ", ".join(map(str, figures["first"])),
        )
        for name, figures in (sets | {"**all**": report["all"]}).items()
    )
    columns = ("questions", "", "right in the first three rows", "right first")
    return _DAY.format(
        file=file,
        machine=report["machine"],
        acts=report["acts"],
        questions=report["all"]["questions"],
        rows=table(columns, rows),
    )


def host_questions() -> str:
    """Make the table of the newest report of benchmarks/host/questions.py."""
    found = newest("host-questions")
    assert found, "no report of benchmarks/host/questions.py is committed"
    file, report = found
    figures = report["by set"] | report["by kind"]
    rows = (
        (name, *(str(figures[key][of]) for of in ("questions", "MRR@10", "first", "in ten")))
        for key, name in _NAMES.items()
    )
    return _QUESTIONS.format(
        file=file,
        machine=report["machine"],
        questions=report["questions"],
        objects=report["objects"],
        observers=sum(1 for count in report["observers"].values() if count),
        rows=table(("questions", "", "MRR@10", "right first", "right in ten"), rows),
    )
