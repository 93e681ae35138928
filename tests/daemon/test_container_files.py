"""The compose file and the DaemonSet of etc/container: what they repeat, and their schemas."""

import re
from typing import Any

import pytest
from conftest import ROOT

from opdbus import config

yaml: Any = pytest.importorskip("yaml", reason="there is no yaml: pip install 'op-dbus[dev]'")
FOLDER = ROOT / "etc" / "container"
COMPOSE, DAEMONSET = FOLDER / "compose.yaml", FOLDER / "daemonset.yaml"
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


def test_the_compose_file_fits_its_specification() -> None:
    """The Compose Specification's types accept the file once its variables have values."""
    spec: Any = pytest.importorskip("compose_spec", reason="pip install compose-spec")
    text = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", COMPOSE.read_text())
    text = re.sub(r"\$\{\w+:\?.*?\}", "990", text)
    assert "$" not in text
    assert spec.PyCompose.from_yaml(text).service_names() == ["op-dbus"]


def test_the_daemonset_fits_the_schema_of_kubernetes() -> None:
    """The published schema of DaemonSets, with no key that it does not name, accepts the file."""
    kubernetes: Any = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate"
    )
    found = yaml.safe_load(DAEMONSET.read_text())
    kubernetes.validate(found, kubernetes.latest_version(), strict=True)
    del found["spec"]["template"]["spec"]["containers"][0]["name"]
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(found, kubernetes.latest_version(), strict=True)
