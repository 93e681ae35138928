"""The rules that read a question, step by step, and what each part of them contributes."""

from docs_parts.tables import newest, table

_RULES = """\
From `benchmarks/results/{file}` (`benchmarks/answers/ablation.py`), at the level medium. Each rule
was left out alone. The last columns sum up, over the rules of a part, the first answers and the
refusals of what is not there that were lost: in the half that is held back, and in the other one.
Rules without which none was lost were deleted, unless these pages promise them.

{rows}"""
# In the order in which a question passes them: the part, where its rows are, and what a row means.
_PARTS = {
    "routes": ("tables/routes.tsv", "the command that a form of question goes to"),
    "comparisons": ("index/query/constraints.py", "a field above or below a number"),
    "times": ("index/query/constraints.py", "timers and jobs that run then"),
    "dates": ("index/query/constraints.py", "dates before or after today"),
    "vocabulary": ("tables/vocabulary.tsv", "a value that objects have"),
    "values": ("language/vocabulary.py", "which forms of words name a value"),
    "kinds": ("tables/kinds.tsv", "a kind of objects, and its penalty where it is not asked for"),
    "patterns": ("index/query/question_patterns.py", "what the form of a question asks for"),
    "extremes": ("index/query/extremes.py", "the field that a superlative compares"),
    "everyday": ("tables/everyday.tsv", "words that hosts have for a phrase, by topic"),
    "glossary": ("tables/glossary.tsv", "plain words for names, by topic"),
    "field names": ("index/search/lexical_matches.py", "fields that a word stands for"),
    "related units": (
        "index/search/related_answers.py",
        "units that name a unit, or that it names",
    ),
    "happenings": ("tables/happenings.tsv", "an event, in questions about changes"),
}


def rules() -> str:
    """Make the table of the newest report of benchmarks/answers/ablation.py."""
    found = newest("ablation")
    assert found, "no report of benchmarks/answers/ablation.py is committed"
    file, report = found
    rows = []
    for part, (where, meaning) in _PARTS.items():
        own = [row for row in report["rules"] if row["part"] == part]
        if not own:
            continue
        lost = (str(sum(_lost(row.get(half, {})) for row in own)) for half in ("held", "open"))
        deleted = str(sum("deleted" in row for row in own))
        example = next((row["example"] for row in own if "deleted" not in row), "")
        rows.append((part, f"`{where}`", meaning, f"`{example}`", str(len(own)), deleted, *lost))
    heads = (
        *("part", "rows of", "a row means", "for example", "rules", "deleted"),
        *("lost, held", "lost, open"),
    )
    return _RULES.format(file=file, rows=table(heads, rows))


def _lost(half: dict[str, int]) -> int:
    names = ("lost", "absent no longer refused", "foreign no longer refused")
    return sum(half.get(name, 0) for name in names)
