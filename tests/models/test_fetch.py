"""Models pulled from a local hub and imported from folders: recorded, whole, verified."""

import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from harness.hub import FIRST, SECOND, WEIGHTS, Hub, files_in, nothing_left, visible
from harness.tiny import write_tiny_model

from opdbus import config
from opdbus.errors import ModelError
from opdbus.models import folder, level_table, model_store, pull_hub, shape
from opdbus.models.folder import Record
from opdbus.models.level_table import Level
from opdbus.models.pull_hub import Request

OWN = Level("low", "someone/tiny", 32, 20)
NAMES = {*level_table.TRANSFORMER.files, folder.RECORD_NAME}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask this machine directly, whatever proxy its user has."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Serve a tiny model as the repository of `OWN`."""
    running = Hub(OWN.repository, write_tiny_model(tmp_path / "hub"))
    yield running
    running.close()


def pull(
    hub: Hub, models: Path, *, level: Level = OWN, revision: str = "", force: bool = False
) -> Record:
    """Pull from the local hub."""
    return pull_hub.pull(level, models, Request(revision, force, hub.address), lambda _: None)


def adopt(source: Path, models: Path, *, level: Level = OWN, force: bool = False) -> Record:
    """Import a folder."""
    return model_store.import_model(source, level, models, notify=lambda _: None, force=force)


def load(models: Path) -> folder.Model:
    """Load the model of `OWN` as the daemon does."""
    environ = {"HOME": str(models), "OP_DBUS_MODEL_DIR": str(models), "OP_DBUS_VECTOR_LEVEL": "low"}
    return folder.load_model(OWN, config.load(environ))


def fails(call: Callable[[], object]) -> str:
    """Expect a model error of one line and give it."""
    with pytest.raises(ModelError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# the first pull


def test_first_pull_brings_what_a_model_is_read_from(hub: Hub, models: Path) -> None:
    """Take exactly the files that the daemon reads, which has a model under its level's name.

    Repository, commit, time and every file's checksum are recorded beside the files.
    """
    hub.main["pytorch_model.bin"] = hub.main["README.md"] = b"not wanted"
    made = pull(hub, models)
    files = files_in(models / OWN.folder)
    assert set(files) == NAMES
    assert all(files[name] == hub.main[name] for name in level_table.TRANSFORMER.files)
    assert nothing_left(models)
    model = load(models)
    assert (model.name, model.shape.max_tokens) == (OWN.repository, OWN.max_tokens)
    found = json.loads((models / OWN.folder / folder.RECORD_NAME).read_text())
    assert found["source"] == OWN.repository
    assert found["revision"] == made.revision == FIRST
    assert found["when"].endswith("+00:00")
    assert found["files"] == folder.hash_files(models / OWN.folder, level_table.TRANSFORMER.files)
    assert set(found["files"]) == set(level_table.TRANSFORMER.files)


def test_without_a_limit_of_its_own(hub: Hub, models: Path) -> None:
    """Pull a repository that lacks the one file that may be missing."""
    del hub.main[shape.LIMIT]
    assert shape.LIMIT not in pull(hub, models).files
    assert load(models).level == "low"


def test_pulled_files_are_for_everyone(hub: Hub, models: Path) -> None:
    """Let the daemon's user reach and read what root pulled with a narrow umask."""
    before = os.umask(0o077)
    try:
        pull(hub, models)
    finally:
        os.umask(before)
    target = models / OWN.folder
    for path in (models.parent, models, target, *target.rglob("*")):
        wanted = 0o755 if path.is_dir() else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_revision_is_asked_for(hub: Hub, models: Path) -> None:
    """Take the branch, tag or commit that is named, and record its commit."""
    hub.commits[SECOND] = hub.main | {shape.LIMIT: b'{"max_seq_length": 9}'}
    hub.heads["v2"] = SECOND
    assert pull(hub, models, revision="v2").revision == SECOND
    assert (models / OWN.folder / shape.LIMIT).read_bytes() == b'{"max_seq_length": 9}'


# later pulls


def test_second_pull_asks_nobody(hub: Hub, models: Path) -> None:
    """Verify what was pulled without the network, even when main has moved on."""
    made = pull(hub, models)
    hub.asked.clear()
    hub.heads["main"] = SECOND
    assert pull(hub, models) == made
    assert hub.asked == []


@pytest.mark.parametrize("name", level_table.TRANSFORMER.files)
def test_changed_file_is_refused(hub: Hub, models: Path, name: str) -> None:
    """Name the file that changed since, at load and at a pull, and touch nothing unless forced."""
    pull(hub, models)
    path = models / OWN.folder / name
    changed = path.read_bytes() + b" "
    path.write_bytes(changed)
    sentence = fails(lambda: pull(hub, models))
    assert sentence.startswith(f"{name} in {models / OWN.folder} differ from {OWN.repository}@1111")
    assert "--force" in sentence
    assert f"{name} in " in fails(lambda: load(models))
    assert path.read_bytes() == changed
    pull(hub, models, force=True)
    assert load(models).weights_sha256 == folder.sha256(models / OWN.folder / WEIGHTS)


def test_added_file_is_refused(hub: Hub, models: Path) -> None:
    """Refuse a limit that was not there when the model was pulled."""
    del hub.main[shape.LIMIT]
    pull(hub, models)
    (models / OWN.folder / shape.LIMIT).write_text('{"max_seq_length": 5}')
    assert shape.LIMIT in fails(lambda: load(models))
    assert shape.LIMIT in fails(lambda: pull(hub, models))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"source": 1}', '{"files": 0}', '{"files": {"config.json": 1}}']
)
def test_damaged_record_is_refused(hub: Hub, models: Path, text: str) -> None:
    """Trust no model whose record cannot be read, until it is pulled again by force."""
    pull(hub, models)
    (models / OWN.folder / folder.RECORD_NAME).write_text(text)
    assert "record" in fails(lambda: load(models))
    assert "--force" in fails(lambda: pull(hub, models))
    assert pull(hub, models, force=True).revision == FIRST


def test_missing_file_comes_back_at_its_revision(hub: Hub, models: Path) -> None:
    """Repair a model from the recorded commit, not from where main is now."""
    made = pull(hub, models)
    hub.commits[SECOND] = hub.main | {shape.LIMIT: b"{}"}
    hub.heads["main"] = SECOND
    (models / OWN.folder / WEIGHTS).unlink()
    assert pull(hub, models).files == made.files
    assert load(models).weights_sha256 == made.files[WEIGHTS]


def test_other_revision_with_other_files_is_refused(hub: Hub, models: Path) -> None:
    """Name what another revision would change, and change it only by force."""
    pull(hub, models)
    hub.commits[SECOND] = hub.main | {shape.LIMIT: b"{}"}
    sentence = fails(lambda: pull(hub, models, revision=SECOND))
    assert sentence.startswith(f"{shape.LIMIT} in ")
    assert f"@{SECOND[:12]}" in sentence
    assert load(models).level == "low"
    assert pull(hub, models, revision=SECOND, force=True).revision == SECOND
    assert (models / OWN.folder / shape.LIMIT).read_bytes() == b"{}"


def test_other_revision_with_the_same_files(hub: Hub, models: Path) -> None:
    """Record another commit of the same files without force."""
    pull(hub, models)
    hub.commits[SECOND] = dict(hub.main)
    assert pull(hub, models, revision=SECOND).revision == SECOND
    assert folder.read_record(models / OWN.folder) == pull(hub, models)


def test_unrecorded_folder_is_not_overwritten(hub: Hub, models: Path) -> None:
    """Leave a folder that somebody else filled alone, unless forced."""
    (models / OWN.folder).mkdir(parents=True)
    (models / OWN.folder / WEIGHTS).write_bytes(b"mine")
    assert WEIGHTS in fails(lambda: pull(hub, models))
    assert files_in(models / OWN.folder) == {WEIGHTS: b"mine"}
    pull(hub, models, force=True)
    assert set(files_in(models / OWN.folder)) == NAMES


def test_unrecorded_folder_of_the_same_files(hub: Hub, models: Path) -> None:
    """Record the same files where they lie, and leave what lies beside them."""
    target = write_tiny_model(models / OWN.folder)
    (target / "notes.txt").write_text("mine")
    pull(hub, models)
    assert set(files_in(target)) == {*NAMES, "notes.txt"}
    assert load(models).level == "low"


# what is refused


def without(name: str) -> Callable[[Hub], None]:
    """Take a file out of the repository."""
    return lambda hub: hub.main.pop(name) and None


def with_body(name: str, body: bytes) -> Callable[[Hub], None]:
    """Give a file of the repository another content."""
    return lambda hub: hub.main.update({name: body})


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (without(WEIGHTS), "has no model.safetensors: op-dbus reads no other kind of weights"),
        (without("tokenizer.json"), "lacks tokenizer.json, so it is no sentence-transformers"),
        (with_body("config.json", b'{"model_type": "gpt2"}'), "someone/tiny@111111111111 "),
        (with_body("modules.json", b"[]"), "someone/tiny@111111111111/modules.json lists no"),
        (with_body("tokenizer.json", b"{}"), "cannot read the tokenizer someone/tiny@1111"),
        (with_body(WEIGHTS, b"pickled"), "cannot read the weights someone/tiny@1111"),
    ],
)
def test_no_model_of_ours(
    hub: Hub, models: Path, spoil: Callable[[Hub], None], sentence: str
) -> None:
    """Say what a repository lacks, and leave nothing behind."""
    spoil(hub)
    assert sentence in fails(lambda: pull(hub, models))
    assert visible(models) == []
    assert nothing_left(models)


def test_other_width_is_refused(hub: Hub, models: Path) -> None:
    """Refuse a model of another dimension than its level's."""
    sentence = fails(lambda: pull(hub, models, level=replace(OWN, dimension=384)))
    assert "holds vectors 32 wide, but someone/tiny, the low model, has 384" in sentence


@pytest.mark.parametrize("force", [False, True])
def test_catalogue_wins(hub: Hub, models: Path, *, force: bool) -> None:
    """Refuse files that are not those of the catalogue, whatever the hub says, also by force."""
    official = replace(OWN, weights_sha256="0" * 64)
    sentence = fails(lambda: pull(hub, models, level=official, force=force))
    assert "is not the official file of someone/tiny" in sentence
    assert visible(models) == []


def test_catalogue_wins_over_a_record(hub: Hub, models: Path) -> None:
    """Refuse at a second pull what was recorded before the catalogue knew better."""
    pull(hub, models)
    official = replace(OWN, weights_sha256="0" * 64)
    assert "not the official file" in fails(lambda: pull(hub, models, level=official))


def test_no_such_repository_or_revision(hub: Hub, models: Path) -> None:
    """Tell a repository that the hub does not have from a revision that it does not have."""
    sentence = fails(lambda: pull(hub, models, level=replace(OWN, repository="no/body")))
    assert f"there is no public repository no/body on {hub.address}" in sentence
    sentence = fails(lambda: pull(hub, models, revision="v9"))
    assert f"someone/tiny has no revision v9 on {hub.address}" in sentence


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(503, "answered 503; try again later"), (200, "does not answer as a hub does")],
)
def test_no_hub(hub: Hub, models: Path, status: int, sentence: str) -> None:
    """Tell a hub that is down from what is no hub."""
    hub.status = status
    assert sentence in fails(lambda: pull(hub, models))


def test_no_network(models: Path) -> None:
    """Say that the hub cannot be reached, and how to do without."""
    nowhere = Request(endpoint="http://127.0.0.1:9")
    sentence = fails(lambda: pull_hub.pull(OWN, models, nowhere, lambda _: None))
    assert "from http://127.0.0.1:9: " in sentence
    assert "refused" in sentence
    assert "op-dbus models import DIR low" in sentence


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("short", f"cannot get {WEIGHTS} of someone/tiny at main"),
        ("damaged", f"{WEIGHTS} of someone/tiny at main came damaged"),
        ("dead", f"cannot get {WEIGHTS}"),
    ],
)
def test_bad_download(hub: Hub, models: Path, fault: str, sentence: str) -> None:
    """Take nothing that ended early, is not what its checksum says, or whose hub died midway."""
    hub.faults[WEIGHTS] = fault
    assert sentence in fails(lambda: pull(hub, models))
    assert visible(models) == []
    assert nothing_left(models)


def test_broken_connection_is_taken_up_again(hub: Hub, models: Path) -> None:
    """Go on where a connection broke."""
    hub.faults[WEIGHTS] = "dropped"
    pull(hub, models)
    assert hub.asked.count(f"GET /large/{FIRST}/{WEIGHTS}") == 2
    assert load(models).level == "low"


def test_directory_that_cannot_be(hub: Hub, tmp_path: Path) -> None:
    """Say where models would go, and how to let them."""
    (tmp_path / "file").write_text("")
    sentence = fails(lambda: pull(hub, tmp_path / "file" / "models"))
    assert sentence.startswith(f"cannot write {tmp_path / 'file' / 'models'}: ")
    assert "run as root, or set OP_DBUS_MODEL_DIR" in sentence


# folders


def test_import(tmp_path: Path, models: Path) -> None:
    """Copy what a model is read from, checked and recorded, through a snapshot's links."""
    blobs = write_tiny_model(tmp_path / "blobs")
    snapshot = tmp_path / "snapshot"
    (snapshot / "1_Pooling").mkdir(parents=True)
    for name in [*level_table.TRANSFORMER.files]:
        (snapshot / name).symlink_to(blobs / name)
    (snapshot / "pytorch_model.bin").write_bytes(b"not wanted")
    made = adopt(snapshot, models)
    target = models / OWN.folder
    assert set(files_in(target)) == NAMES
    assert not any(path.is_symlink() for path in target.rglob("*"))
    assert (made.source, made.revision) == (str(snapshot), "")
    assert load(models).level == "low"


def test_import_keeps_what_a_pull_recorded(hub: Hub, models: Path, tmp_path: Path) -> None:
    """Carry a pulled model to a machine without network, with its commit."""
    made = pull(hub, models)
    again = adopt(models / OWN.folder, tmp_path / "other")
    assert (again.source, again.revision, again.files) == (made.source, FIRST, made.files)
    (models / OWN.folder / shape.LIMIT).write_text("{}")
    sentence = fails(lambda: adopt(models / OWN.folder, tmp_path / "third"))
    assert f"{shape.LIMIT} in " in sentence


def test_import_of_what_is_there(models: Path) -> None:
    """Record a model that was copied into its place by hand, and leave what lies beside it."""
    target = write_tiny_model(models / OWN.folder)
    (target / "notes.txt").write_text("mine")
    assert adopt(target, models).source == str(target)
    assert set(files_in(target)) == {*NAMES, "notes.txt"}
    (target / shape.LIMIT).write_text("{}")
    assert f"{shape.LIMIT} in {target} changed" in fails(lambda: load(models))


def test_import_of_what_only_its_copier_may_read(models: Path) -> None:
    """Let the daemon's user read what was copied into its place by hand, and no more than that."""
    target = write_tiny_model(models / OWN.folder)
    (target / "notes.txt").write_text("mine")
    for path in (target, *target.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    adopt(target, models)
    kept = {target, target / "1_Pooling", *(target / name for name in NAMES)}
    for path in kept:
        wanted = 0o755 if path.is_dir() else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert stat.S_IMODE((target / "notes.txt").stat().st_mode) == 0o600


def test_import_of_another_model_is_refused(tmp_path: Path, models: Path) -> None:
    """Replace a model by another only by force."""
    adopt(write_tiny_model(tmp_path / "one"), models)
    other = write_tiny_model(tmp_path / "two", seed=1)
    assert f"{WEIGHTS} in {models}" in fails(lambda: adopt(other, models))
    adopt(other, models, force=True)
    assert load(models).weights_sha256 == folder.sha256(other / WEIGHTS)


@pytest.mark.parametrize("name", level_table.TRANSFORMER.required)
def test_import_without_a_file(tmp_path: Path, models: Path, name: str) -> None:
    """Name what a folder lacks, before anything is written."""
    source = write_tiny_model(tmp_path / "mine")
    (source / name).unlink()
    sentence = fails(lambda: adopt(source, models))
    assert sentence.startswith(f"the model folder {source} lacks {name}")
    assert not models.exists()


def test_import_of_half_weights(tmp_path: Path, models: Path) -> None:
    """Read the weights' header against the file's length."""
    source = write_tiny_model(tmp_path / "mine")
    (source / WEIGHTS).write_bytes((source / WEIGHTS).read_bytes()[:-1])
    sentence = fails(lambda: adopt(source, models))
    assert sentence.startswith(f"cannot read the weights {source / WEIGHTS}")


def test_import_from_nowhere(tmp_path: Path, models: Path) -> None:
    """Name a folder that is not there."""
    assert str(tmp_path / "no") in fails(lambda: adopt(tmp_path / "no", models))
