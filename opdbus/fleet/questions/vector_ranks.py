"""Texts of the fleet by the vector of a question, for each numerics that has vectors.

The first pass compares bits by HNSW, the second the cosines of what it found. With conditions,
or of a few hosts, all cosines are computed; of many hosts the index is searched on until enough
texts are of one of them: no filter makes an answer shorter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from opdbus.fleet.questions.fleet_conditions import ON_HOSTS, TextFilter

if TYPE_CHECKING:
    import asyncpg

# Texts of the first pass, and of the answer to choose from.
_FIRST_PASS: Final = 200
POOL: Final = 100
# Texts that the index is searched for with a filter: more than any fleet has.
_MOST_SCANNED: Final = 100_000_000
# Texts by which it is judged what cosine any text has with the question, and the least spread.
_SAMPLE: Final = 200
_LEAST_SPREAD: Final = 0.04


class Numerics(NamedTuple):
    """A model whose vectors the fleet has; vectors of equal `name` can be compared."""

    number: int
    name: str
    level: str
    dimension: int


class NearText(NamedTuple):
    """A text with its cosine by vectors of `level`, and the mean and spread of any text's."""

    digest: bytes
    cosine: float
    level: str
    mean: float
    spread: float

    @property
    def above(self) -> float:
        """The distance of the cosine above that of any text, in standard deviations."""
        return (self.cosine - self.mean) / max(self.spread, _LEAST_SPREAD)


# Gives the vectors of a text by the names of the numerics that it can compute.
Embed: TypeAlias = Callable[[str, Sequence[Numerics]], Awaitable[Mapping[str, Sequence[float]]]]


async def numerics_in_use(connection: asyncpg.Connection) -> list[Numerics]:
    """Return the numerics of which the fleet has vectors.

    While another level serves, the wanted one has vectors of some texts only, and is left out.
    """
    rows = await connection.fetch(
        "SELECT numerics, name, level, dimension FROM opdbus.numerics AS n WHERE EXISTS"
        " (SELECT FROM opdbus.vector WHERE numerics = n.numerics) AND NOT EXISTS"
        " (SELECT FROM opdbus.fleet WHERE wanted = n.numerics AND wanted <> serving)"
        " ORDER BY numerics"
    )
    return [Numerics(*row) for row in rows]


async def rank_by_vector(
    connection: asyncpg.Connection,
    numerics: Numerics,
    vector: Sequence[float],
    only: TextFilter | None = None,
) -> list[NearText]:
    """Return the texts nearest to a vector of the numerics, of those that count."""
    # only here: the gateway, which has no asyncpg without a fleet, imports this module
    from opdbus.fleet import postgres

    if len(vector) != numerics.dimension:
        return []
    texts, hosts = only or TextFilter()
    given = postgres.format_vector(vector)
    # the text of the type, since asyncpg knows no halfvec; numbers are ours
    table, bits = f"opdbus.vector_{numerics.number:d}", f"bit({numerics.dimension:d})"
    if texts is not None:
        first = f"SELECT digest, v FROM {table} WHERE digest = ANY($2)"  # noqa: S608
    else:
        near = (
            f"SELECT digest, v FROM {table} AS near WHERE {ON_HOSTS.replace('$', '$2')}"  # noqa: S608
            if hosts is not None
            else f"SELECT digest, v FROM {table} WHERE $2::int[] IS NULL"  # noqa: S608
        )
        first = (
            f"{near} ORDER BY public.binary_quantize(v)::{bits} OPERATOR(public.<~>)"
            f" public.binary_quantize($1::text::public.halfvec)::{bits} LIMIT {_FIRST_PASS}"
        )
    cosine = "1 - (v OPERATOR(public.<=>) $1::text::public.halfvec)"
    async with connection.transaction():
        await connection.execute(
            f"SET LOCAL hnsw.ef_search = {_FIRST_PASS};"
            # goes on until enough texts pass the filter
            " SET LOCAL hnsw.iterative_scan = strict_order;"
            f" SET LOCAL hnsw.max_scan_tuples = {_MOST_SCANNED}"
        )
        # digests are as good as random, so that the first ones are a sample
        rows = await connection.fetch(
            f"WITH sample AS MATERIALIZED (SELECT {cosine} AS c FROM {table}"  # noqa: S608
            f" ORDER BY numerics, digest LIMIT {_SAMPLE}),"
            " usual AS MATERIALIZED (SELECT avg(c) AS mean, stddev_pop(c) AS spread FROM sample)"
            f" SELECT digest, {cosine} AS cosine, mean, spread FROM ({first}) AS near, usual"
            f" ORDER BY cosine DESC, digest LIMIT {POOL}",
            given,
            list(texts) if texts is not None else list(hosts) if hosts is not None else None,
        )
    return [
        NearText(row["digest"], row["cosine"], numerics.level, row["mean"], row["spread"])
        for row in rows
    ]
