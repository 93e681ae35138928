"""Rules of the schema's files, which need no server."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("asyncpg", reason="asyncpg is not installed: the extra `fleet` has it")

from opdbus.errors import ConfigError
from opdbus.fleet import postgres


def test_functions_look_into_the_session_last() -> None:
    """Set the search path of every function, with the session's own schema at its end."""
    heads = re.findall(r"CREATE (?:OR REPLACE )?FUNCTION.*?AS \$\$", postgres.schema(), re.DOTALL)
    assert len(heads) > 20
    assert [head for head in heads if ", pg_temp AS $$" not in head] == []


def test_a_database_of_another_version_is_refused() -> None:
    """Refuse a database to which another text of the schema was applied."""

    async def fetchval(_query: str) -> str:
        return "0" * 64

    connection = cast("Any", SimpleNamespace(fetchval=fetchval))
    with pytest.raises(ConfigError, match="has the schema of another op-dbus"):
        asyncio.run(postgres.require_schema(connection))


@pytest.mark.parametrize("url", ["postgresql://a:secret@h/d", "postgresql://a@h:1/d?x=y"])
def test_a_password_is_left_out_of_what_is_printed(url: str) -> None:
    """Print where a database is, without the password."""
    assert "secret" not in postgres.without_password(url)
    assert "a@h" in postgres.without_password(url)
