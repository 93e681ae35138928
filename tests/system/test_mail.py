"""The example for mail of docs/alerts.md, with a mail server of Debian on a host of its own.

`OP_DBUS_TEST_PACKAGES=dist pytest tests/system/test_mail.py`, which `make test-all` runs.
"""

import email
import os
import re
import time
from pathlib import Path

import pytest

from system import packaged
from system.host import PATIENCE_SECONDS

FOLDER = os.environ.get("OP_DBUS_TEST_PACKAGES", "")
EXAMPLE, ALERTS = "/usr/share/doc/op-dbus/notify.d/mail", "/etc/op-dbus/notify.d/mail"
UNIT, MAILBOX = "op-dbus-notify.service", "/var/mail/root"


@pytest.mark.parametrize("suite", packaged.SUITES)
def test_an_alert_lies_in_roots_mailbox(suite: str, tmp_path: Path) -> None:
    """A unit fails, and its alert goes through the mail server's port to root's mailbox."""
    if not FOLDER:
        pytest.skip("OP_DBUS_TEST_PACKAGES names no folder of packages: `make test-all` does")
    if reason := packaged.reason_against(Path(FOLDER), suite):
        pytest.skip(reason)
    with packaged.fresh(Path(FOLDER), suite, tmp_path, "postfix,curl") as host:
        packaged.install(host)
        host.ask("systemctl", "start", "postfix.service")
        # as the example says to do with postfix, whose `sendmail` needs more rights
        text = host.path(EXAMPLE).read_text()
        line = re.search(r"^# (SENDMAIL = .*)$", text, re.MULTILINE)
        assert line
        host.write("/root/mail", text.replace(line[0], line[1]))
        host.ask("install", "-g", "op-dbus-config", "-m", "750", "/root/mail", ALERTS)
        packaged.until_ready(host)
        host.ask("systemctl", "enable", "--now", UNIT)
        host.ask("systemd-run", "--unit=broken", "sh", "-c", "exit 3")
        end = time.monotonic() + PATIENCE_SECONDS
        found: list[str] = []
        while not any("broken.service" in subject for subject in found):
            assert time.monotonic() < end, f"there is mail on {found}\n{host.log()}"
            time.sleep(0.5)
            box = host.path(MAILBOX).read_text() if host.path(MAILBOX).exists() else ""
            mails = [email.message_from_string(part) for part in re.split(r"(?m)^From .*\n", box)]
            found = [" ".join(str(mail["Subject"]).split()) for mail in mails[1:]]
        assert any(re.search(r"error: broken.service .*failed.*3", each) for each in found), found
        assert "alerts: on; mail is at change " in host.run("op-dbus", "doctor").stdout
