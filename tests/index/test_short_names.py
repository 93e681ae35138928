"""Short names of objects: what they mean, where they mean several, what is close to none."""

import pytest

from opdbus.index.catalogue.short_names import MOST, find
from opdbus.state.object import ObjectId

NAMES = (
    "systemd/unit/sshd.service systemd/unit/sshd.socket systemd/unit/cron.timer"
    " systemd/unit/nginx.service packages/package/nginx users/account/root users/group/root"
    " mounts/mount//var files/file//etc/ssh/sshd_config login1/seat/seat0 net/interface/Wlan0"
)
THINGS = [ObjectId(*name.split("/", 2)) for name in NAMES.split()]


def found(name: str) -> list[str]:
    """Give what a name means, in full."""
    return ["/".join(object_id) for object_id in find(THINGS, name)[0]]


def close(name: str) -> list[str]:
    """Give what is close to a name that means nothing."""
    meant, near = find(THINGS, name)
    assert meant == []
    return ["/".join(object_id) for object_id in near]


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("sshd", "systemd/unit/sshd.service"),
        ("sshd.socket", "systemd/unit/sshd.socket"),
        ("cron", "systemd/unit/cron.timer"),
        ("unit/nginx", "systemd/unit/nginx.service"),
        ("systemd/nginx", "systemd/unit/nginx.service"),
        ("systemd/unit/sshd", "systemd/unit/sshd.service"),
        ("packages/nginx", "packages/package/nginx"),
        ("/var", "mounts/mount//var"),
        ("mount//var", "mounts/mount//var"),
        ("sshd_config", "files/file//etc/ssh/sshd_config"),
        ("/etc/ssh/sshd_config", "files/file//etc/ssh/sshd_config"),
        ("wlan0", "net/interface/Wlan0"),
        ("SSHD", "systemd/unit/sshd.service"),
    ],
)
def test_a_unique_name_means_its_object(name: str, means: str) -> None:
    """A name that one object has, with or without plugin, kind, suffix and folder, means it."""
    assert found(name) == [means]


def test_a_name_of_several_means_all() -> None:
    """Of several objects none is chosen, whatever their kinds, unless plugin or kind decides."""
    assert found("nginx") == ["packages/package/nginx", "systemd/unit/nginx.service"]
    assert found("root") == ["users/account/root", "users/group/root"]
    assert found("users/root") == found("root")
    assert found("group/root") == ["users/group/root"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("shsd", "systemd/unit/sshd.service"),
        ("ngnix", "packages/package/nginx"),
        ("seat", "login1/seat/seat0"),
        ("unit/ngnix", "packages/package/nginx"),
        ("users/account/rot", "users/account/root"),
    ],
)
def test_close_names_are_found(name: str, nearest: str) -> None:
    """Where no object has the name, those come that hold it or are spelt much like it."""
    assert close(name)[0] == nearest


def test_a_name_that_is_not_there_has_no_close_one() -> None:
    """What shares some letters with a name is not close to it."""
    assert find(
        [ObjectId("users", "group", "shadow"), ObjectId("packages", "package", "passwd")], "sshd"
    ) == ([], [])


@pytest.mark.parametrize("name", ["", " ", "//", "///", "zzzzzzzz", "\x00", "x" * 100_000])
def test_a_name_of_nothing_means_nothing(name: str) -> None:
    """Odd names mean no object, not even the mount `/`, which ends with nothing after a slash."""
    root = ObjectId("mounts", "mount", "/")
    assert find([*THINGS, root], name)[0] == []
    assert find([*THINGS, root], "/") == ([root], [])


def test_lists_are_short() -> None:
    """However many objects a name may mean, or are close to it, few are given."""
    many = [ObjectId("a", f"kind{number}", "same") for number in range(50)]
    assert len(find(many, "same")[0]) == MOST
    assert len(find(many, "sam")[1]) == MOST
    assert len(find(many, "smae")[1]) == MOST
