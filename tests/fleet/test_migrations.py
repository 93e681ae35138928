"""Rules of the schema's files, which need no server."""

import re

import pytest

pytest.importorskip("asyncpg", reason="asyncpg is not installed: the extra `fleet` has it")

from opdbus.errors import ConfigError
from opdbus.fleet import postgres

FILES = postgres.migrations()


def test_files_are_numbered_from_one() -> None:
    """Number the files without a gap, so that each database has a beginning of the list."""
    assert [each.number for each in FILES] == list(range(1, len(FILES) + 1))
    assert len(FILES) >= 5


def test_the_files_that_a_database_lacks_follow_in_order() -> None:
    """Apply what is missing, in the order of the numbers, and nothing twice."""
    applied = {each.number: (each.name, each.sha256) for each in FILES}
    assert postgres.require_known(applied) == []
    assert postgres.require_known({}) == FILES
    del applied[len(FILES)]
    assert postgres.require_known(applied) == FILES[-1:]


def test_a_database_of_a_later_version_is_refused() -> None:
    """Refuse a database that has a file which this version does not know."""
    with pytest.raises(ConfigError, match="it has 0099_later"):
        postgres.require_known({99: ("0099_later.sql", "")})


def test_a_file_that_was_changed_is_refused() -> None:
    """Refuse a database to which another text of a file was applied."""
    name = FILES[0].name
    with pytest.raises(ConfigError, match=f"{name} is not the file that was applied"):
        postgres.require_known({1: (name, "0" * 64)})


@pytest.mark.parametrize("file", FILES, ids=lambda each: each.name)
def test_functions_look_into_the_session_last(file: postgres.Migration) -> None:
    """Set the search path of every function, with the session's own schema at its end."""
    heads = re.findall(r"CREATE (?:OR REPLACE )?FUNCTION.*?AS \$\$", file.sql, re.DOTALL)
    assert [head for head in heads if ", pg_temp AS $$" not in head] == []


@pytest.mark.parametrize("url", ["postgresql://a:secret@h/d", "postgresql://a@h:1/d?x=y"])
def test_a_password_is_left_out_of_what_is_printed(url: str) -> None:
    """Print where a database is, without the password."""
    assert "secret" not in postgres.without_password(url)
    assert "a@h" in postgres.without_password(url)
