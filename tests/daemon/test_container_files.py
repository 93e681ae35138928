"""The compose file and the DaemonSet of etc/container: what they repeat, and their schemas."""

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from opdbus import config

yaml: Any = pytest.importorskip("yaml", reason="there is no yaml: pip install 'op-dbus[dev]'")
FOLDER = ROOT / "etc" / "container"
COMPOSE, DAEMONSET = FOLDER / "compose.yaml", FOLDER / "daemonset.yaml"
GPU_COMPOSE, GPU_PATCH = FOLDER / "compose.gpu.yaml", FOLDER / "daemonset.gpu.yaml"
IMAGE = ROOT / ".ci" / "image"
STATE = "/var/lib/op-dbus"


def service() -> dict[str, Any]:
    """Give the service of the compose file."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["op-dbus"]
    return found


def pod() -> dict[str, Any]:
    """Give the pod of the DaemonSet."""
    found: dict[str, Any] = yaml.safe_load(DAEMONSET.read_text())["spec"]["template"]["spec"]
    return found


def mounts() -> list[set[tuple[str, str, bool]]]:
    """Give, of each file, where from and where to the host's paths are mounted, and if writable."""
    paths = {v["name"]: v["hostPath"]["path"] for v in pod()["volumes"] if "hostPath" in v}
    (container,) = pod()["containers"]
    return [
        {(v["source"], v["target"], not v.get("read_only")) for v in service()["volumes"]},
        {
            (paths[mount["name"]], mount["mountPath"], not mount.get("readOnly"))
            for mount in container["volumeMounts"]
            if mount["name"] in paths
        },
    ]


def test_settings_are_those_of_the_program() -> None:
    """Each variable of the image, the compose file and the DaemonSet is a setting."""
    known = {setting.variable for setting in config.SETTINGS}
    (container,) = pod()["containers"]
    given = set(re.findall(r"--config\.env (OP_DBUS_\w+)=", IMAGE.read_text()))
    assert {"OP_DBUS_VECTOR_LEVEL", "OP_DBUS_EXECUTION_PROVIDER"} <= given
    for names in (given, set(service()["environment"]), {e["name"] for e in container["env"]}):
        assert names
        assert names <= known
    defaults = {setting.variable: setting.default for setting in config.SETTINGS}
    assert all(e["value"] == defaults[e["name"]] for e in container["env"])
    for name, value in service()["environment"].items():
        assert value == f"${{{name}:-{defaults[name]}}}"


def test_the_host_is_mounted_at_its_own_places_and_read_only() -> None:
    """Both files mount the same paths where they are, and only the state can be written."""
    first, second = mounts()
    assert first == second
    assert all(source == target for source, target, _ in first)
    assert [target for _, target, is_writable in first if is_writable] == [STATE]
    assert f"OP_DBUS_STATE_DIR={STATE} " in IMAGE.read_text().replace("\\\n", "")


def test_nothing_is_privileged() -> None:
    """Both files run a user without capabilities on a root that is read-only."""
    assert service()["read_only"]
    assert service()["cap_drop"] == ["ALL"]
    assert service()["security_opt"] == ["no-new-privileges:true"]
    assert pod()["securityContext"]["runAsNonRoot"]
    (container,) = pod()["containers"]
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_gpu_is_handed_over_with_the_libraries_of_its_driver() -> None:
    """Both files for a GPU hand the device over, and mount the same libraries read-only."""
    service = yaml.safe_load(GPU_COMPOSE.read_text())["services"]["op-dbus"]
    names = ("nvidia0", "nvidiactl", "nvidia-uvm")
    assert service["devices"] == [f"/dev/{name}:/dev/{name}" for name in names]
    pod = yaml.safe_load(GPU_PATCH.read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    targets = {volume["target"] for volume in service["volumes"] if volume["read_only"]}
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in targets
    assert {
        mount["mountPath"] for mount in container["volumeMounts"] if mount["readOnly"]
    } == targets
    assert {volume["hostPath"]["path"] for volume in pod["volumes"]} == targets
    for source in (volume["source"] for volume in service["volumes"]):
        assert source.replace(
            "${DRIVER:-/usr/lib/x86_64-linux-gnu}", "/usr/lib/x86_64-linux-gnu"
        ) in (targets)
    given = {each["name"]: each["value"] for each in container["env"]}
    assert given["OP_DBUS_EXECUTION_PROVIDER"] == "auto"
    assert given["CUDA_CACHE_PATH"] == service["environment"]["CUDA_CACHE_PATH"]


@pytest.mark.parametrize("path", [COMPOSE, GPU_COMPOSE], ids=lambda path: path.name)
def test_the_compose_files_fit_their_specification(path: Path) -> None:
    """The Compose Specification's types accept each file once its variables have values."""
    spec: Any = pytest.importorskip("compose_spec", reason="pip install compose-spec")
    text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", path.read_text())
    text = re.sub(r"\$\{\w+:\?.*?\}", "990", text)
    assert "$" not in text
    assert spec.PyCompose.from_yaml(text).service_names() == ["op-dbus"]


def _with_gpu(found: Any) -> Any:
    """Apply the patch as Kubernetes does: lists of rows that have names are merged by these."""

    def merge(given: Any, patch: Any) -> Any:
        if isinstance(patch, dict):
            return {**given, **{key: merge(given.get(key, {}), patch[key]) for key in patch}}
        if isinstance(patch, list):
            rows = {row["name"]: row for row in given}
            return [
                *{
                    **rows,
                    **{row["name"]: merge(rows.get(row["name"], {}), row) for row in patch},
                }.values()
            ]
        return patch

    return merge(found, yaml.safe_load(GPU_PATCH.read_text()))


@pytest.mark.parametrize("has_gpu", [False, True])
def test_the_daemonset_fits_the_schema_of_kubernetes(*, has_gpu: bool) -> None:
    """The published schema of DaemonSets, with no key that it does not name, accepts the file."""
    kubernetes: Any = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate"
    )
    found = yaml.safe_load(DAEMONSET.read_text())
    if has_gpu:
        found = _with_gpu(found)
    kubernetes.validate(found, kubernetes.latest_version(), strict=True)
    del found["spec"]["template"]["spec"]["containers"][0]["name"]
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(found, kubernetes.latest_version(), strict=True)
