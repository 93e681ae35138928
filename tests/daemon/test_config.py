"""Settings: where each comes from, and all that is wrong said at once."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness.running import run_program
from hypothesis import example, given
from hypothesis import strategies as st

from opdbus.config import ARGUMENT, SETTINGS, Config, load
from opdbus.errors import ConfigError, InvalidArgs
from opdbus.settings.parsing import AUTO_CHAIN, ProviderRequest

HOME = {"HOME": "/home/bob"}


def refusal(environ: dict[str, str], flags: dict[str, str] | None = None) -> list[str]:
    """Give the problems with which settings are refused, one a line."""
    with pytest.raises(ConfigError) as caught:
        load(HOME | environ, flags)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def toml(folder: Path, text: str) -> dict[str, str]:
    """Write a settings file and name it in an environment."""
    path = folder / "op-dbus.toml"
    path.write_text(text, encoding="utf-8")
    return HOME | {"OP_DBUS_CONFIG": str(path)}


def test_defaults_are_as_documented() -> None:
    """Use the documented values where nothing is set."""
    config = load(HOME, euid=1000)
    assert config.execution_provider == ProviderRequest(("cpu",))
    assert (config.vector_level, config.precision, config.bus) == ("medium", "auto", "system")
    assert config.state_file == Path("/etc/op-dbus/state.json")
    assert config.drift_threshold == "warning"
    assert (config.model, config.batch_tokens, config.queue_limit, config.threads) == (None,) * 4
    assert set(config.sources.values()) == {"default"}


def test_every_setting_has_a_field_and_words() -> None:
    """Give each row of the table a field of Config, and words for the tables made from it."""
    fields = set(Config.__dataclass_fields__) - {"sources"}
    assert fields == {setting.key for setting in SETTINGS}
    assert all(
        setting.doc and setting.variable == f"OP_DBUS_{setting.key.upper()}" for setting in SETTINGS
    )


def test_a_bad_argument_is_shown_as_an_argument() -> None:
    """Show what a caller in Python or on the bus gave as an argument, not as a flag."""
    refusal = r"^level='huge' is not accepted: give one of none, static, low"
    with pytest.raises(ConfigError, match=refusal):
        load(HOME, {"vector_level": "huge"}, source=ARGUMENT)
    with pytest.raises(InvalidArgs, match=r"^provider='psychic' is not accepted"):
        load(HOME).on("psychic")
    assert load(HOME).on("auto", "1").sources["gpu_device"] == ARGUMENT


def test_a_bad_flag_is_told_as_a_flag() -> None:
    """Show a bad value as it was written on the command line, not as a variable."""
    (problem,) = refusal({"OP_DBUS_THREADS": "2"}, {"threads": "x"})
    assert problem.startswith("--threads x is not accepted: give auto or")
    (problem,) = refusal({}, {"gpu_device": "a b"})
    assert problem.startswith("--gpu-device 'a b' is not accepted")


def test_flag_wins_over_variable_over_file_over_default(tmp_path: Path) -> None:
    """Take each setting from the strongest place that has it, and remember which that was."""
    environ = toml(tmp_path, 'threads = 1\nlog_level = "error"\nqueue_limit = 5\n')
    environ |= {"OP_DBUS_THREADS": "2", "OP_DBUS_LOG_LEVEL": "debug"}
    config = load(environ, {"threads": "3"})
    assert (config.threads, config.log_level, config.queue_limit) == (3, "debug", 5)
    assert config.sources["threads"] == "flag"
    assert config.sources["log_level"] == "environment"
    assert config.sources["queue_limit"] == environ["OP_DBUS_CONFIG"]
    assert config.sources["bus"] == "default"


def test_bad_value_that_is_overruled_is_no_problem() -> None:
    """Judge only the values that count."""
    assert load(HOME | {"OP_DBUS_THREADS": "many"}, {"threads": "3"}).threads == 3


def test_empty_variable_is_unset(tmp_path: Path) -> None:
    """Take an empty variable as not set, and an empty OP_DBUS_CONFIG as no file."""
    environ = toml(tmp_path, "threads = 1\n") | {"OP_DBUS_THREADS": "", "OP_DBUS_BUS": ""}
    config = load(environ)
    assert (config.threads, config.bus) == (1, "system")
    assert load(HOME | {"OP_DBUS_CONFIG": ""}).sources["threads"] == "default"


def test_other_variables_are_not_ours() -> None:
    """Leave variables alone that do not begin with the prefix."""
    assert load(HOME | {"OP_DB": "x", "op_dbus_threads": "x", "OPDBUS_BUS": "x"}).threads is None


GOOD = [
    ("EXECUTION_PROVIDER", "CPU", ProviderRequest(("cpu",))),
    ("EXECUTION_PROVIDER", "cpu:onnxruntime", ProviderRequest(("cpu:onnxruntime",))),
    ("EXECUTION_PROVIDER", "gpu", ProviderRequest(("cuda",))),
    ("EXECUTION_PROVIDER", "cuda,gpu", ProviderRequest(("cuda",))),
    ("EXECUTION_PROVIDER", " cuda , cpu ", ProviderRequest(("cuda", "cpu"))),
    ("EXECUTION_PROVIDER", "Auto", ProviderRequest(AUTO_CHAIN)),
    ("EXECUTION_PROVIDER", "trt,DML", ProviderRequest(("tensorrt", "directml"))),
    ("EXECUTION_PROVIDER", "rocm", ProviderRequest(("migraphx",))),
    ("GPU_DEVICE", "3", ("3",)),
    ("GPU_DEVICE", "0, 1,0", ("0", "1")),
    ("GPU_DEVICE", "ALL", ("all",)),
    ("GPU_DEVICE", "GPU-1a2b", ("GPU-1a2b",)),
    ("GPU_DEVICE", "MIG-1a2b", ("MIG-1a2b",)),
    ("GPU_DEVICE", "mig-1a2b", ("mig-1a2b",)),
    ("VECTOR_LEVEL", "HIGH", "high"),
    ("VECTOR_LEVEL", " Med ", "medium"),
    ("GPU_DEVICE", "gpu-1,GPU-2", ("gpu-1", "GPU-2")),
    ("GPU_MEM_LIMIT", "auto", None),
    ("GPU_MEM_LIMIT", "512M", 512 << 20),
    ("GPU_MEM_LIMIT", "8 GiB", 8 << 30),
    ("GPU_MEM_LIMIT", "8gb", 8 << 30),
    ("MAX_LOADED_BYTES", "900k", 900 << 10),
    ("MAX_LOADED_BYTES", "1t", 1 << 40),
    ("VECTOR_LEVEL", "med", "medium"),
    ("VECTOR_LEVEL", "HIGH", "high"),
    ("MODEL", "/models/x", Path("/models/x")),
    ("PRECISION", "fp32", "fp32"),
    ("PRECISION", "BF16", "bf16"),
    ("STATE_FILE", "relative.json", Path.cwd() / "relative.json"),
    ("VOLATILE", "net/interface:mtu, a/b:c.d,", ("net/interface:mtu", "a/b:c.d")),
    ("OBSERVE", "auto, org.freedesktop.UDisks2", ("auto", "org.freedesktop.UDisks2")),
    ("OBSERVE", "org.bluez:/,introspect:a.b", ("org.bluez:/", "introspect:a.b")),
    ("OBSERVE", "none", ()),
    ("BUS", "session", "session"),
    ("BUS", "unix:path=/run/my.sock", "unix:path=/run/my.sock"),
    ("BATCH_TOKENS", "16", 16),
    ("BATCH_TOKENS", "AUTO", None),
    ("THREADS", " 4 ", 4),
    ("DRIFT_THRESHOLD", " Error ", "error"),
    ("LOG_LEVEL", "Debug", "debug"),
    ("LOG_FORMAT", "journal", "journal"),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_good_value_is_read(name: str, text: str, value: Any) -> None:
    """Read every accepted spelling of a value."""
    assert getattr(load(HOME | {f"OP_DBUS_{name}": text}), name.lower()) == value


BAD = [
    ("EXECUTION_PROVIDER", "quantum", "one of auto, cpu"),
    ("EXECUTION_PROVIDER", "cuda,", "several in order of preference"),
    ("EXECUTION_PROVIDER", "auto,cpu", "one of auto"),
    ("EXECUTION_PROVIDER", "cudaa", "did you mean cuda?"),
    ("EXECUTION_PROVIDER", "tensortr,cpu", "did you mean tensorrt?"),
    ("EXECUTION_PROVIDER", "cpu,openvno", "did you mean openvino?"),
    ("EXECUTION_PROVIDER", "onnxruntime", "did you mean cpu:onnxruntime?"),
    ("EXECUTION_PROVIDER", "nvidia", "did you mean cuda?"),
    ("EXECUTION_PROVIDER", "cuda:1", "did you mean cuda?"),
    ("EXECUTION_PROVIDER", "CUDAExecutionProvider", "did you mean cuda?"),
    ("EXECUTION_PROVIDER", "TensorrtExecutionProvider", "did you mean tensorrt?"),
    ("EXECUTION_PROVIDER", "MPS", "did you mean coreml?"),
    ("EXECUTION_PROVIDER", "vulkan", "did you mean webgpu?"),
    ("VECTOR_LEVEL", "hgih", "did you mean high?"),
    ("VECTOR_LEVEL", "mediun", "did you mean medium?"),
    ("PRECISION", "int-8", "did you mean int8?"),
    ("EXECUTION_PROVIDER", ",", "one of auto"),
    ("GPU_DEVICE", "-1", "0 or more"),
    ("GPU_DEVICE", "²", "0 or more"),
    ("GPU_DEVICE", "0,", "0 or more"),
    ("GPU_DEVICE", "0,all", "or all"),
    ("GPU_DEVICE", "0,GPU-1a2b", "a GPU's UUID"),
    *[
        (name, text, "a number of bytes such as 512M or 8G")
        for name in ("GPU_MEM_LIMIT", "MAX_LOADED_BYTES")
        for text in ("0", "-1", "8.5G", "G", "lots", "8P", "²G", "8 G 1", "9" * 5000, "9999999T")
    ],
    ("VECTOR_LEVEL", "huge", "none, static, low, medium, high, med"),
    ("MODEL", "a\0b", "a path"),
    ("STATE_FILE", "~nosuch/x", "a path; there is no home folder ~nosuch"),
    ("STATE_DIR", "~nosuch", "there is no home folder ~nosuch"),
    ("VOLATILE", "mtu", "fields such as net/interface:mtu"),
    ("OBSERVE", "none,auto", "none alone, or names"),
    ("OBSERVE", "a b", "auto, none, or names"),
    ("BUS", "unix:path=a\0b", "system, session"),
    ("PRECISION", "int3", "one of auto"),
    ("BUS", "tcp", "system, session, or an address"),
    ("BATCH_TOKENS", "15", "from 16 to"),
    ("BATCH_TOKENS", "1e3", "auto or a whole number"),
    ("QUEUE_LIMIT", "0", "from 1 to"),
    ("THREADS", "-1", "from 1 to 4096"),
    ("THREADS", "4097", "from 1 to 4096"),
    ("DRIFT_THRESHOLD", "0.15", "one of info, notice, warning, error"),
    ("LOG_LEVEL", "loud", "debug, info, warning, error"),
    ("LOG_FORMAT", "xml", "console, json, journal"),
]


@pytest.mark.parametrize(("name", "text", "accepted"), BAD)
def test_bad_value_is_refused(name: str, text: str, accepted: str) -> None:
    """Name the variable and what is accepted, in one line."""
    [problem] = refusal({f"OP_DBUS_{name}": text})
    assert problem.startswith(f"OP_DBUS_{name}=")
    assert "is not accepted: give " in problem
    assert accepted in problem


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Report bad values of all sources, and unknown names, together."""
    environ = toml(tmp_path, 'log_level = "loud"\nspeed = 3\nqueue_limit = 0\n')
    problems = refusal(
        environ | {"OP_DBUS_THREADS": "x", "OP_DBUS_TREADS": "4", "OP_DBUS_GPU_DEVICE": "-1"},
        {"bus": "tram"},
    )
    expected = (
        "LOG_LEVEL",
        "speed",
        "QUEUE_LIMIT",
        "THREADS=",
        "TREADS in",
        "GPU_DEVICE",
        "--bus tram",
    )
    assert len(problems) == len(expected)
    for words in expected:
        assert sum(words in problem for problem in problems) == 1, words
    assert all(environ["OP_DBUS_CONFIG"] in p for p in problems if "LOG_LEVEL" in p or "speed" in p)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OP_DBUS_EXECUTION_PROVIDR", "OP_DBUS_EXECUTION_PROVIDER"),
        ("OP_DBUS_PROVIDER", "OP_DBUS_EXECUTION_PROVIDER"),
        ("OP_DBUS_LEVEL", "OP_DBUS_VECTOR_LEVEL"),
        ("OP_DBUS_VECTORLEVEL", "OP_DBUS_VECTOR_LEVEL"),
        ("OP_DBUS_STATEFILE", "OP_DBUS_STATE_FILE"),
        ("OP_DBUS_threads", "OP_DBUS_THREADS"),
        ("OP_DBUS_LOGLEVEL", "OP_DBUS_LOG_LEVEL"),
        ("OP_DBUS_CONFG", "OP_DBUS_CONFIG"),
        ("OP_DBUS_MODELDIR", "OP_DBUS_MODEL_DIR"),
    ],
)
def test_misspelt_variable_gets_a_suggestion(name: str, meant: str) -> None:
    """Suggest what was meant by a name that is no setting."""
    [problem] = refusal({name: "1"})
    assert problem.startswith(f"{name} in the environment is not a setting: did you mean ")
    assert meant in problem


def test_strange_variable_gets_no_suggestion() -> None:
    """Suggest nothing for a name that resembles none, though all share the prefix."""
    [problem] = refusal({"OP_DBUS_XYZZY": "1"})
    assert problem.endswith("is not a setting; `op-dbus config` lists them all")


@pytest.mark.parametrize("key", ["treads", "THREADS", "op_dbus_threads", "log-level"])
def test_misspelt_key_gets_a_suggestion(tmp_path: Path, key: str) -> None:
    """Suggest the key for a name in the file that is none."""
    [problem] = refusal(toml(tmp_path, f"{key} = 1\n"))
    assert problem.startswith(f"{key} in {tmp_path}/op-dbus.toml is not a setting: did you mean ")
    assert {"threads", "log_level"} & set(problem.removesuffix("?").split())


def test_file_may_use_its_own_types(tmp_path: Path) -> None:
    """Read numbers, and a list as a chain."""
    config = load(
        toml(
            tmp_path,
            'execution_provider = ["cuda", "cpu"]\ndrift_threshold = "error"\nthreads = 2\n',
        )
    )
    assert config.execution_provider == ProviderRequest(("cuda", "cpu"))
    assert (config.drift_threshold, config.threads) == ("error", 2)


@pytest.mark.parametrize("value", ["true", "{ a = 1 }", "[]", '""', "2024-01-01"])
def test_wrong_type_in_the_file_is_refused(tmp_path: Path, value: str) -> None:
    """Refuse a value of a type that the setting cannot have."""
    [problem] = refusal(toml(tmp_path, f"threads = {value}\n"))
    assert problem.startswith("OP_DBUS_THREADS=")
    assert f"(in {tmp_path}/op-dbus.toml)" in problem


def test_unreadable_file_is_a_problem_among_others(tmp_path: Path) -> None:
    """Report a missing file, broken TOML or wrong encoding together with what else is wrong."""
    broken = tmp_path / "broken.toml"
    broken.write_text("threads = \n")
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'bus = "\xe9"\n')
    deep = tmp_path / "deep.toml"
    deep.write_text("threads = " + "[" * 20000)
    large = tmp_path / "large.toml"
    large.write_text("threads = 0x" + "f" * 9999)
    for path, words in (
        (deep, "recursion"),
        (large, "digits"),
        (tmp_path / "none.toml", "No such file"),
        (broken, "line 1"),
        (latin, "utf-8"),
        (tmp_path, "Is a directory"),
        (Path("a\0b"), "null byte"),
    ):
        problems = refusal({"OP_DBUS_CONFIG": str(path), "OP_DBUS_BUS": "tram"})
        assert len(problems) == 2
        assert problems[0].startswith(f"OP_DBUS_CONFIG: cannot read {path}: ")
        assert words in problems[0]


def test_only_models_of_root_lie_in_the_system() -> None:
    """Keep root's models where the service finds them, and what root computes in root's home."""
    config = load(HOME | {"XDG_DATA_HOME": "/x"}, euid=0)
    assert config.model_dir == Path("/var/lib/op-dbus/models")
    assert config.state_dir == Path("/home/bob/.local/state/op-dbus")
    assert load(HOME | {"XDG_STATE_HOME": "/y"}, euid=0).state_dir == Path("/y/op-dbus")


def test_users_keep_data_in_their_home() -> None:
    """Keep a user's data where XDG says, or in its defaults; a relative XDG path is ignored."""
    config = load(HOME | {"XDG_DATA_HOME": "/x", "XDG_STATE_HOME": "/y"}, euid=1000)
    assert (config.model_dir, config.state_dir) == (Path("/x/op-dbus/models"), Path("/y/op-dbus"))
    for environ in (HOME, HOME | {"XDG_DATA_HOME": "", "XDG_STATE_HOME": "relative"}):
        config = load(environ, euid=1000)
        assert config.model_dir == Path("/home/bob/.local/share/op-dbus/models")
        assert config.state_dir == Path("/home/bob/.local/state/op-dbus")


def test_a_user_without_a_home_has_settings() -> None:
    """Need no home to be asked about the bus, as for a user that the system does not know."""
    code = (
        "import os; from opdbus import config; os.setuid(54321); print(config.load({}).state_dir)"
    )
    homeless = {key: text for key, text in os.environ.items() if key != "HOME"}
    done = run_program([sys.executable, "-c", code], env=homeless)
    if "PermissionError" in done.stderr:
        pytest.skip("only root can become another user")
    assert done.stdout == "/.local/state/op-dbus\n", done.stderr


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    """Refuse a relative path where there is no folder that it could be relative to."""
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, sys; from opdbus import config; os.rmdir(sys.argv[1]);"
        "config.load({'OP_DBUS_STATE_DIR': 'x'})"
    )
    done = run_program([sys.executable, "-P", "-c", code, gone], cwd=gone)
    assert "give a full path: the working folder is gone" in done.stderr


@given(st.sampled_from([s.variable for s in SETTINGS]), st.text(max_size=30))
@example("OP_DBUS_MODEL", "~\ud800/x")
def test_no_text_is_a_fault_of_ours(variable: str, text: str) -> None:
    """Read any text of any setting, or refuse it with a sentence."""
    with suppress(ConfigError):
        load(HOME | {variable: text})


def test_rows_show_what_is_in_effect() -> None:
    """List every setting in the table's order with its effective value and source."""
    environ = HOME | {"OP_DBUS_EXECUTION_PROVIDER": "gpu,cpu", "OP_DBUS_THREADS": "2"}
    rows = load(environ, {"vector_level": "med"}, euid=1000).rows()
    assert [variable for variable, _, _ in rows] == [setting.variable for setting in SETTINGS]
    shown = {variable.removeprefix("OP_DBUS_"): (value, source) for variable, value, source in rows}
    assert shown["EXECUTION_PROVIDER"] == ("cuda,cpu", "environment")
    assert shown["VECTOR_LEVEL"] == ("medium", "flag")
    assert shown["THREADS"] == ("2", "environment")
    assert shown["QUEUE_LIMIT"] == ("auto", "default")
    assert shown["MODEL"] == ("", "default")
    assert shown["STATE_DIR"] == ("/home/bob/.local/state/op-dbus", "default")
