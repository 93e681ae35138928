"""training/: what the static table learns from, and that a table is trained towards its teacher."""

import gzip
import importlib.util
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import numpy as np
import pytest

TRAINING = Path(__file__).parents[2] / "training"


def load(name: str) -> ModuleType:
    """Import a script of training/."""
    spec = importlib.util.spec_from_file_location(f"training_{name}", TRAINING / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_host_has_texts(tmp_path: Path) -> None:
    """Packages, manual pages and units make texts; a page that is damaged makes none."""
    corpus, random = load("corpus"), Random(1)  # noqa: S311 -- no secret
    units, pages = tmp_path / "units", tmp_path / "man/man1"
    for place in (units, pages):
        place.mkdir(parents=True)
    page = ".TH COOL 1\n.SH NAME\ncool \\- keep a room cool\n.SH OTHER\n"
    (pages / "cool.1.gz").write_bytes(gzip.compress(page.encode()))
    (pages / "torn.1.gz").write_bytes(gzip.compress(page.encode())[:-9])
    (units / "hum.service").write_text("[Unit]\nDescription=Hums\n")
    assert [*corpus.manual_pages(tmp_path / "man")] == [("cool", "keep a room cool")]
    assert [*corpus.manual_pages(tmp_path / "man", {"cool"})] == []
    assert "systemd service cool: keep a room cool" in corpus.of_manual_page(
        random, "cool", "keep a room cool"
    )
    (said,) = corpus.unit_texts(units)
    assert "service hum: Hums" in said
    made = corpus.of_package(random, "zap", "Tool that zaps")
    assert made[-1] == "Tool that zaps"
    assert "software package zap" in made[0]


@pytest.mark.torch
def test_a_table_is_trained_towards_its_teacher(tiny: Path) -> None:
    """Rows begin with the teacher's words, and training brings the sums of texts nearer to it."""
    pytest.importorskip("torch", reason="the extra `train` is not installed")
    table = load("table")
    words = table.make_tokenizer(tiny, ["zebra"] * 9 + ["yak"] * 8)
    vocabulary = words["model"]["vocab"]
    assert "zebra" in vocabulary
    assert "yak" not in vocabulary
    random = np.random.default_rng(3)
    targets = table.project(random.standard_normal((200, 8)).astype(np.float32), 4)
    assert np.allclose(np.linalg.norm(targets, axis=1), 1, atol=1e-5)
    pieces = [[0, 3 + number % 20, 1] for number in range(20)]
    pieces += [[0, *random.integers(3, 23, 4), 1] for _ in range(180)]
    rows = table.first_rows(pieces, 23, targets, 1)
    assert rows[3] @ targets[0] > 0.99 * np.linalg.norm(rows[3])

    def cosine(made: np.ndarray) -> float:
        sums = np.array([made[each].sum(axis=0) for each in pieces])
        return float(((sums / np.linalg.norm(sums, axis=1, keepdims=True)) * targets).sum(1).mean())

    trained = table.train(rows, pieces, targets, table.Recipe(epochs=30, batch=50, rate=0.02))
    assert cosine(trained) > cosine(rows) + 0.1
