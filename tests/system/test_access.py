"""Who may call what on a booted host, on both message buses, with polkit and without."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from system.calls import MANAGE, Call, every_call, refused
from system.host import Host
from system.service import NAME, Service

CALLS = every_call()
MANAGING = [call for call in CALLS if call.action == MANAGE]
CHANGED = "type='signal',interface='org.freedesktop.PolicyKit1.Authority',member='Changed'"
RULES = "/etc/polkit-1/rules.d/10-test.rules"
# the outsider may do everything, the member nothing
REVERSED = """
polkit.addRule(function (action, subject) {
    if (action.id.indexOf("org.opdbus.") == 0) {
        if (subject.user == "outsider") return polkit.Result.YES;
        if (subject.user == "member") return polkit.Result.NO;
    }
});
"""


@pytest.fixture
def no_polkit(host: Host) -> Iterator[None]:
    """Take polkit away for a while."""
    host.ask("systemctl", "mask", "--quiet", "--runtime", "--now", "polkit.service")
    yield
    host.ask("systemctl", "unmask", "--quiet", "--runtime", "polkit.service")


@contextmanager
def ruled(host: Host, rules: str) -> Iterator[None]:
    """Have an administrator's rules, which polkit has read, for a while."""
    with host.monitor(CHANGED) as heard:
        host.write(RULES, rules)
        heard.until(lambda: heard.heard)
    try:
        yield
    finally:
        with host.monitor(CHANGED) as heard:
            host.path(RULES).unlink()
            heard.until(lambda: heard.heard)


@pytest.mark.usefixtures("service")
def test_an_outsider_may_nothing(host: Host) -> None:
    """Whoever is not in the group is refused every method, reading and setting."""
    assert refused(host, "outsider", CALLS) == CALLS


@pytest.mark.usefixtures("service")
def test_a_member_may_not_manage(host: Host) -> None:
    """The group may read, vectorize and publish; to manage the service takes more."""
    assert refused(host, "member", CALLS) == MANAGING


@pytest.mark.usefixtures("service")
def test_root_may_everything(host: Host) -> None:
    """Root is refused nothing."""
    assert refused(host, "root", CALLS) == []


@pytest.mark.usefixtures("service", "no_polkit")
def test_without_polkit_the_group_decides(host: Host) -> None:
    """Where there is no polkit, the group may what it may, and nobody else anything."""
    assert refused(host, "outsider", CALLS) == CALLS
    assert refused(host, "member", CALLS) == MANAGING
    assert refused(host, "root", CALLS) == []


def test_polkits_rules_are_followed(host: Host, service: Service) -> None:
    """Rules that come and go while it runs allow whom they allow, and deny the group too."""
    pid = service.pid
    host.ask("systemctl", "start", "polkit.service")
    assert refused(host, "outsider", CALLS) == CALLS
    with ruled(host, REVERSED):
        assert refused(host, "outsider", CALLS) == []
        assert refused(host, "member", CALLS) == CALLS
    assert refused(host, "outsider", CALLS) == CALLS
    assert refused(host, "member", CALLS) == MANAGING
    assert service.pid == pid


@pytest.mark.parametrize("user", ["outsider", "member"])
@pytest.mark.usefixtures("service")
def test_nobody_else_has_its_name(host: Host, user: str) -> None:
    """Only the service's user and root may own the name."""
    bus = "org.freedesktop.DBus"
    request = Call("", "/org/freedesktop/DBus", bus, "RequestName", "su", [NAME, 0], bus)
    assert refused(host, user, [request]) == [request]
