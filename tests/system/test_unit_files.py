"""The record of what systemd says of odd unit files is that of a systemd that is booted now."""

import json
import os

import pytest
from scripts import make_unit_files

from system.booting import why_not


def test_the_record_is_what_systemd_says() -> None:
    """Boot a systemd of the version of the record on all files: it says what was recorded."""
    if "OP_DBUS_TEST_BUSES" not in os.environ:
        pytest.skip("it boots a host of its own for a minute: `make test-all` does")
    if reason := why_not():
        pytest.skip(reason)
    known, found = json.loads(make_unit_files.RECORD.read_text()), make_unit_files.record()
    if known["systemd"].split()[:2] != found["systemd"].split()[:2]:
        pytest.skip(f"the record is of {known['systemd']}, here is {found['systemd']}")
    assert found["units"] == known["units"]
