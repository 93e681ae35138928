"""`op-dbus distil`: what it learns from, what it refuses, and that its students are served."""

import gzip
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner
from harness.tiny import LAYERS, WORDS
from harness.whole_cli import root

import opdbus
from opdbus.config import Config
from opdbus.distil import distillation, host_texts, loss_report, teacher
from opdbus.distil.lesson import RECIPES, Lesson, Recipe, Request
from opdbus.engine import check_set
from opdbus.errors import ConfigError
from opdbus.models import level_table
from opdbus.observe.packages.documents import Places

needs_torch = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="the extra `train` is not installed"
)
RANDOM = Random(14)  # noqa: S311 -- no secret
TEXTS = tuple(" ".join(RANDOM.choices(WORDS, k=5)) for _ in range(400))
TABLE = replace(RECIPES["static"], epochs=3, batch=64, dimension=16)
CUT = replace(RECIPES["layers"], epochs=1, layers=1)
PAIRS = tuple((f"which {text}?", text) for text in TEXTS[:100])


@pytest.fixture
def ask(tiny_model: Path, tmp_path: Path) -> Request:
    """Ask for a table that imitates the tiny model."""
    return Request(tiny_model, tmp_path / "into", TABLE, TEXTS)


def test_a_host_has_texts(tmp_path: Path) -> None:
    """A host's packages, manual pages and units each make texts; a page that is damaged makes none.

    What is said of a package and of a command is asked for too.
    """
    places = Places(tmp_path, tmp_path / "dpkg", tmp_path / "man", "no-rpm", ())
    units, pages = tmp_path / "units", tmp_path / "man/man1"
    for place in (places.dpkg, units, pages):
        place.mkdir(parents=True)
    (places.dpkg / "status").write_text(
        "Package: zap\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n"
        "Description: Tool that zaps\n\n"
    )
    page = ".TH COOL 1\n.SH NAME\ncool \\- keep a room cool\n.SH OTHER\n"
    (pages / "cool.1.gz").write_bytes(gzip.compress(page.encode()))
    (pages / "torn.1.gz").write_bytes(gzip.compress(page.encode())[:-9])
    (units / "hum.service").write_text("[Unit]\nDescription=Hums\n")
    found = host_texts.of_host(1, places, units, made_ones=0)
    assert found == host_texts.of_host(1, places, units, made_ones=0)
    assert {"Tool that zaps", "keep a room cool", "systemd service cool: keep a room cool"} <= {
        *found
    }
    for said in ("software package zap", "service hum: Hums"):
        assert sum(said in text for text in found) == 1, said
    assert not [text for text in found if "torn" in text]


def test_what_is_measured_is_not_learned(ask: Request) -> None:
    """One text and one pair in twenty are held out, the same ones for a seed."""
    ask = replace(ask, pairs=PAIRS)
    lesson = Lesson.of(ask, ["network", TEXTS[0]])
    assert lesson == Lesson.of(ask, ["network", TEXTS[0]])
    assert lesson.every == [*TEXTS, "network"]
    assert (len(lesson.measured), len(lesson.asked)) == (20, 5)
    learned = {lesson.every[number] for number in lesson.learned}
    assert learned.isdisjoint(lesson.measured)
    assert learned | {*lesson.measured} == {*TEXTS, "network"}
    assert sorted([*lesson.pairs, *lesson.asked]) == sorted(PAIRS)


@pytest.mark.parametrize("lowers", [True, False])
def test_a_table_has_words(tiny: Path, *, lowers: bool) -> None:
    """A table has the teacher's words, or ours where it splits differently, and frequent ones."""
    path = tiny / level_table.TOKENIZER
    path.write_text(path.read_text().replace('"lowercase": true', f'"lowercase": {lowers}'.lower()))
    words = teacher.make_tokenizer(teacher.read_teacher(tiny), ["zebra"] * 9 + ["yak"] * 8)
    vocabulary = words["model"]["vocab"]
    assert "zebra" in vocabulary
    assert (words["truncation"], words["padding"]) == (None, None)
    assert "yak" not in vocabulary
    assert ("kernel" in vocabulary) != lowers
    rows = teacher.first_rows(words, ["zebra", "mail mail"], np.eye(2, dtype=np.float32), 1)
    assert rows.shape == (len(vocabulary), 2)
    assert rows[vocabulary["zebra"]] @ [1, 0] == np.linalg.norm(rows[vocabulary["zebra"]]) > 0


def test_directions_keep_what_they_can() -> None:
    """Vectors that lie in a plane have the same cosines along its two main directions."""
    random = np.random.default_rng(3)
    flat = (random.standard_normal((50, 2)) @ random.standard_normal((2, 8))).astype(np.float32)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    along = teacher.project(flat, teacher.main_directions(flat, 2))
    np.testing.assert_allclose(along @ along.T, flat @ flat.T, atol=1e-5)


def test_the_report_says_what_was_lost() -> None:
    """Cosines and ranks have intervals; what lies outside the student's directions is lost."""
    whole = np.eye(4, dtype=np.float32)
    asked = loss_report.Questions.of_pairs([("a", "x"), ("b", "y"), ("c", "x")])
    assert (asked.texts, asked.wanted.tolist()) == (["x", "y"], [0, 1, 0])
    found = check_set.reciprocal_ranks(whole[:2], whole[[0, 0, 1]], asked.wanted)
    assert found.tolist() == [1.0, 0.5, 0.5]

    def measured(vectors: np.ndarray, ranks: list[float]) -> loss_report.ModelFigures:
        return loss_report.ModelFigures(vectors, {"set": np.array(ranks)}, 2.0, 9, "cpu", 1e-7)

    made = loss_report.compare(
        measured(whole, [1.0, 1.0]), measured(whole[:, :2], [1.0, 0.5]), whole[:, :2]
    )
    assert made["cosine"][0] == 0.5
    assert made["ranks"]["set"] == {
        "questions": 2,
        "teacher": [1.0, 1.0, 1.0],
        "student": [0.75, 0.5, 1.0],
        "lost": [0.25, 0.0, 0.5],
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--to", "layers", "--layers", str(LAYERS)], f"has {LAYERS} layers: --layers"),
        (["--dimension", "33"], "vectors of 32 numbers"),
        (["--texts", "FEW", "--dimension", "16"], "2 texts are too few"),
        (["--texts", "gone"], "cannot read the texts gone"),
        (["--pairs", "FEW"], "line 1 of FEW is no pair"),
        (["--epochs", "0"], "--epochs"),
        (["--layers", "1"], "--layers is for `--to layers`"),
    ],
)
def test_what_cannot_be_is_refused(
    more: list[str], said: str, tiny_model: Path, tmp_path: Path
) -> None:
    """An argument that cannot be is refused with what to give instead, before any work."""
    few = tmp_path / "few"
    few.write_text("one\n\ntwo\n")
    into = tmp_path / "into"
    given = [str(few) if each == "FEW" else each for each in more]
    if "--texts" not in more:
        (tmp_path / "texts").write_text("\n".join(TEXTS))
        given += ["--texts", str(tmp_path / "texts")]
    done = CliRunner().invoke(root, ["distil", str(tiny_model), str(into), *given])
    assert said.replace("FEW", str(few)) in f"{done.exception}{done.output}"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("into")]


def test_a_folder_that_is_there_is_not_touched(ask: Request, settings: Config) -> None:
    """A folder that exists is no place for a student; the teacher's least of all."""
    with pytest.raises(ConfigError, match="is there already"):
        distillation.distil(replace(ask, into=ask.teacher), settings, print)


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_training_needs_the_extra(ask: Request, settings: Config) -> None:
    """Without torch the command says what to install, and leaves nothing behind."""
    with pytest.raises(ConfigError, match=r"pip install --upgrade 'op-dbus\[train\]'"):
        distillation.distil(ask, settings, print)
    assert not ask.into.with_name("into.part").exists()


@needs_torch
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # what torch warns of is not ours
@pytest.mark.parametrize("recipe", [TABLE, CUT], ids=["static", "layers"])
def test_a_stopped_training_goes_on(
    recipe: Recipe, ask: Request, settings: Config, tmp_path: Path
) -> None:
    """Training that is stopped goes on at the step that was kept, to the same student.

    The engine proves the student, whose report lies beside it, and nothing else is left.
    """
    ask = replace(ask, recipe=recipe, pairs=PAIRS if recipe is CUT else (), keep_seconds=0.0)
    told: list[str] = []

    def stop(line: str) -> None:
        told.append(line)
        if line.startswith("training: step 5 "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distillation.distil(ask, settings, stop)
    assert not ask.into.exists()
    told.clear()
    about = distillation.distil(ask, settings, told.append)
    assert [line for line in told if "goes on from" in line and line.endswith("checkpoint-4")]
    assert not [line for line in told if line.startswith(("teacher:", "training: step 4 "))]
    assert sorted(path.name for path in tmp_path.iterdir() if "into" in path.name) == ["into"]
    assert json.loads((ask.into / distillation.ABOUT).read_text()) == json.loads(json.dumps(about))
    level = "static" if recipe is TABLE else "medium"
    whole = replace(ask, into=tmp_path / "whole", keep_seconds=60.0)
    distillation.distil(whole, settings, lambda _: None)
    with (
        opdbus.Embedder(level, model=ask.into, state_dir=settings.state_dir) as one,
        opdbus.Embedder(level, model=whole.into, state_dir=settings.state_dir) as other,
    ):
        np.testing.assert_allclose(one.embed(TEXTS), other.embed(TEXTS), atol=1e-5)
        assert one.dimension == (TABLE.dimension if recipe is TABLE else 32)
    assert about["cosine"][0] > 0.8
