"""What many tests need: a tiny model, a private message bus, settings in a folder of their own."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdbus import config
from opdbus.config import Config

sys.path.insert(0, str(Path(__file__).parent))
from tiny import write_tiny_model

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "state.example.json"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def settings(tmp_path: Path, tiny_model: Path) -> Config:
    """Settings that use the tiny model and nothing of this machine's."""
    return config.load(
        {
            "HOME": str(tmp_path),
            "OP_DBUS_STATE_DIR": str(tmp_path / "state"),
            "OP_DBUS_STATE_FILE": str(EXAMPLE),
            "OP_DBUS_MODEL": str(tiny_model),
        }
    )


@pytest.fixture(scope="session")
def bus_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A private dbus-daemon with the limits of a system bus."""
    if not shutil.which("dbus-daemon"):
        pytest.skip("there is no dbus-daemon: `apt install dbus-daemon`")
    folder = tmp_path_factory.mktemp("bus")
    (folder / "bus.conf").write_text(_BUS_CONFIG.format(folder=folder))
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={folder}/bus.conf", "--nofork", "--print-address=1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert daemon.stdout
    address = daemon.stdout.readline().strip()
    yield address
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()


_BUS_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={folder}/bus.sock</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="false"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
    <allow user="*"/>
  </policy>
  <limit name="max_incoming_bytes">133169152</limit>
  <limit name="max_message_size">33554432</limit>
  <limit name="max_replies_per_connection">128</limit>
  <limit name="max_match_rules_per_connection">512</limit>
  <limit name="max_connections_per_user">256</limit>
</busconfig>
"""
