"""Holds vectors one way, for beside.py: `holders.py WAY VECTORS FOLDER`, then requests as JSON.

Each way is a function that stores the vectors in a folder, and returns what finds the ten best. It
runs in the environment of op-dbus or of the peers.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Find = Callable[[NDArray[np.float32], bool], list[int]]

_BEST: Final = 10
_APART: Final = 10
_AGAIN: Final = 400
_AT_A_TIME: Final = 20_000


def ours(vectors: NDArray[np.float32], folder: Path) -> tuple[Find, str]:
    """Hold vectors as the daemon does, with the ranking that it has."""
    from opdbus import __version__
    from opdbus.index.ranking.scores import Similarity, rank
    from opdbus.index.vectors.quantized_rows import SignQuantizedVectors

    path, dimension = folder / "vectors.rows", vectors.shape[1]
    rows = SignQuantizedVectors(path, dimension)
    for start in range(0, len(vectors), _AT_A_TIME):
        part = vectors[start : start + _AT_A_TIME]
        rows.append([(start + n + 1).to_bytes(16, "big") for n in range(len(part))], part)
    rows.write_snapshot()
    rows = SignQuantizedVectors(path, dimension)
    rows.take_recovered_digests()
    every, some = np.arange(len(vectors)), np.arange(0, len(vectors), _APART)

    def find(query: NDArray[np.float32], is_limited: bool) -> list[int]:  # noqa: FBT001
        at = some if is_limited else every
        products = rows.products(some if is_limited else None)
        found = rank(
            Similarity(products(query), exact=lambda likely: rows.take(at[likely]) @ query)
        )
        return [at.item(number) for (number, _), _ in zip(found, range(_BEST), strict=False)]

    return find, f"op-dbus {__version__}"


def _sqlite(folder: Path) -> Any:  # noqa: ANN401 -- a connection
    # python's own module often loads no extensions
    import apsw
    import sqlite_vec

    database = apsw.Connection(str(folder / "vectors.db"))
    database.enable_load_extension(True)  # noqa: FBT003 -- apsw's own
    sqlite_vec.load(database)
    return database


def sqlite_vec(vectors: NDArray[np.float32], folder: Path) -> tuple[Find, str]:
    """Hold vectors in a virtual table of sqlite-vec, compared exactly."""
    database = _sqlite(folder)
    database.execute(
        f"CREATE VIRTUAL TABLE v USING vec0 (row INTEGER PRIMARY KEY, some INTEGER,"
        f" e FLOAT[{vectors.shape[1]}] distance_metric=cosine)"
    )
    _fill(database, "INSERT INTO v (row, some, e) VALUES (?, ?, ?)", vectors)

    def find(query: NDArray[np.float32], is_limited: bool) -> list[int]:  # noqa: FBT001
        more = " AND some = 1" if is_limited else ""
        rows = database.execute(
            f"SELECT row FROM v WHERE e MATCH ? AND k = {_BEST}{more}",  # noqa: S608 -- our own
            (query.tobytes(),),
        )
        return [row for (row,) in rows]

    return find, f"sqlite-vec {version('sqlite-vec')}"


def sqlite_vec_bits(vectors: NDArray[np.float32], folder: Path) -> tuple[Find, str]:
    """Hold vectors and their signs, as sqlite-vec's documentation advises for many."""
    database, dimension = _sqlite(folder), vectors.shape[1]
    database.execute(
        f"CREATE VIRTUAL TABLE v USING vec0 (row INTEGER PRIMARY KEY, some INTEGER,"
        f" b BIT[{dimension}], +e BLOB)"
    )
    _fill(
        database,
        "INSERT INTO v (row, some, b, e) VALUES (?1, ?2, vec_quantize_binary(?3), ?3)",
        vectors,
    )

    def find(query: NDArray[np.float32], is_limited: bool) -> list[int]:  # noqa: FBT001
        more = " AND some = 1" if is_limited else ""
        rows = database.execute(
            "WITH likely AS (SELECT row, e FROM v WHERE b MATCH vec_quantize_binary(?1)"  # noqa: S608 -- our own
            f" AND k = {max(_AGAIN, len(vectors) // 1000)}{more})"
            f" SELECT row FROM likely ORDER BY vec_distance_cosine(e, ?1) LIMIT {_BEST}",
            (query.tobytes(),),
        )
        return [row for (row,) in rows]

    return find, f"sqlite-vec {version('sqlite-vec')}"


def _fill(database: Any, insert: str, vectors: NDArray[np.float32]) -> None:  # noqa: ANN401
    for start in range(0, len(vectors), _AT_A_TIME):
        part = enumerate(vectors[start : start + _AT_A_TIME], start)
        rows = ((n, n % _APART == 0, vector.tobytes()) for n, vector in part)
        with database:
            database.executemany(insert, rows)


def _table(vectors: NDArray[np.float32], folder: Path) -> Any:  # noqa: ANN401 -- LanceDB's own
    import lancedb
    import pyarrow as pa

    dimension = vectors.shape[1]

    def batches() -> Any:  # noqa: ANN401
        for start in range(0, len(vectors), _AT_A_TIME):
            part = np.ascontiguousarray(vectors[start : start + _AT_A_TIME])
            numbers = np.arange(start, start + len(part))
            lists = pa.FixedSizeListArray.from_arrays(part.ravel(), dimension)
            columns = [pa.array(numbers), pa.array(numbers % _APART == 0), lists]
            yield pa.record_batch(columns, names=["row", "some", "vector"])

    schema = pa.schema(
        [
            ("row", pa.int64()),
            ("some", pa.bool_()),
            ("vector", pa.list_(pa.float32(), dimension)),
        ]
    )
    return lancedb.connect(str(folder)).create_table("v", data=batches(), schema=schema)


def _finding(table: Any, again: int) -> Find:  # noqa: ANN401
    def find(query: NDArray[np.float32], is_limited: bool) -> list[int]:  # noqa: FBT001
        asked = table.search(query).distance_type("cosine").limit(_BEST)
        asked = asked.select(["row", "_distance"])
        if again:
            asked = asked.refine_factor(again).nprobes(50)
        if is_limited:
            asked = asked.where("some = true", prefilter=True)
        return list(asked.to_arrow()["row"].to_pylist())

    return find


def lance(vectors: NDArray[np.float32], folder: Path) -> tuple[Find, str]:
    """Hold vectors in a table of LanceDB, compared exactly."""
    return _finding(_table(vectors, folder), 0), f"LanceDB {version('lancedb')}"


def lance_index(vectors: NDArray[np.float32], folder: Path) -> tuple[Find, str]:
    """Hold vectors in a table of LanceDB with the index that it makes by default."""
    from lancedb.index import IvfPq

    table = _table(vectors, folder)
    table.create_index("vector", config=IvfPq(distance_type="cosine"))
    return _finding(table, _AGAIN // _BEST), f"LanceDB {version('lancedb')}"


def main() -> None:
    """Hold vectors, and answer until standard input ends."""
    way, file, folder = sys.argv[1:]
    vectors = np.load(file, mmap_mode="r")
    began = time.perf_counter()
    find, name = globals()[way](vectors, Path(folder))
    print(
        json.dumps({"version": name, "built s": round(time.perf_counter() - began, 1)}), flush=True
    )
    for line in sys.stdin:
        request = json.loads(line)
        query = np.array(request["query"], np.float32)
        began = time.perf_counter()
        rows = find(query, request["condition"])
        took = 1000 * (time.perf_counter() - began)
        print(json.dumps({"rows": rows, "ms": round(took, 3)}), flush=True)


if __name__ == "__main__":
    main()
