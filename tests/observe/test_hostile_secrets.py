"""A host with a secret in every field that any of our observers reads shows none of them."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attacks import planted
from attacks.leaks import hidden_fields, leaks, secrets
from attacks.planted import MARK
from attacks.scene import Attacker, attacking
from attacks.sources import SECRETS
from harness.running import PATIENCE_SECONDS, Bus, Running, calling, state_file

# Of each kind the fields that have a secret.
HIDDEN = """\
cron/job command description file name program user
devices/block description file label model name on used_by vendor
devices/pci class description driver model name vendor
devices/usb description model name vendor
files/file description name package
kernel/module name used_by
kernel/parameter description name value
kernel/sysctl description file name value wanted
login1/inhibitor mode name user what why
login1/seat class desktop name remote_host seat service session state tty type user
login1/session class desktop name remote_host seat service session state tty type user
login1/user class desktop name remote_host seat service session state tty type user
machined/machine description name os root service state type unit
many/lamp device devices name nested password psk rows words
mounts/mount description fstype name options source
net/address description interface name
net/interface description name parent type
net/listener description service
net/route description interface name
packages/package architecture description homepage name priority section source version
system/fact board chassis codename console_font cpu deployment description end_of_support
system/fact firmware_date firmware_version hostname id keyboard_layout keyboard_model
system/fact keyboard_options keyboard_variant keymap lang language lc_time like location
system/fact pretty_name product release variant vendor version virtualization
systemd/unit after aliases calendar description documentation drop_ins exec following fstype group
systemd/unit listens load_error manual name options package_summary requires restart result slice
systemd/unit status_text sub_state sysfs_path triggered_by triggers type unit unit_file_state
systemd/unit unmet_condition user wants watches what where
users/account description full_name group home name shell
users/group members name
"""
# Answers about so many objects one by one, besides those about all: `make test-all` asks for more.
MOST = 1000 if "OP_DBUS_TEST_SECRETS" in os.environ else 250


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[set[str]]:
    """Have a host with secrets, with fakes of PID 1 and logind; gives where they are."""
    for name, value in planted.install(tmp_path / "site").items():
        monkeypatch.setenv(name, value)
    bus = Bus()
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
    with attacking(bus.address, SECRETS, [Attacker(program="attacks.sources")], 1000.0):
        yield {
            f"{kind}/{field}"
            for kind, *fields in map(str.split, HIDDEN.splitlines())
            for field in fields
        }
    bus.kill()


def test_secrets_in_every_field_are_shown_nowhere(
    wanted: set[str], daemons: Callable[..., Running], tmp_path: Path
) -> None:
    """No secret of any form, in any field, is in answers, signals, logs, commands or files."""
    file = state_file(tmp_path / "state.json", {})
    daemon = daemons(OBSERVE=",".join(planted.NAMES), STATE_FILE=file)

    async def work() -> str:
        async with calling(daemon.bus) as caller:
            daemon.start()
            await caller.ready()
            # that they are hidden shows that they were there
            end = time.monotonic() + PATIENCE_SECONDS
            while missing := wanted - await hidden_fields(caller):
                assert time.monotonic() < end, f"nothing is hidden in {sorted(missing)}"
                await asyncio.sleep(0.2)
            await caller.vectorized()
            return str(caller.signals)

    signals = asyncio.run(work())
    found = leaks(daemon, MARK, most=MOST)
    assert daemon.stop() == 0
    assert not found, "\n".join(found)
    assert not secrets(signals + daemon.logs(), MARK)
    assert "Changed" in signals
