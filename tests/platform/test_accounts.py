"""Names of users and groups."""

from opdbus.platform.accounts import group_name, user_name


def test_names() -> None:
    """A number that nobody has stays a number, also one that no account can have."""
    assert (user_name(0), group_name(0)) == ("root", "root")
    assert user_name(4_000_000_000) == group_name(4_000_000_000) == "4000000000"
    assert user_name(1 << 40) == str(1 << 40)
