"""What programs publish is checked, redacted and made into objects."""

import math
from typing import Any

import pytest

from opdbus.errors import InvalidArgs
from opdbus.state.object import MAX_NAME, Identity
from opdbus.state.publish import MAX_BYTES, MAX_DEPTH, describe, make_object, source
from opdbus.state.secret_text import REDACTED

WHO = "publish:probe"


@pytest.mark.parametrize("name", ["probe", "a", "0", "My-probe_2.x", "x" * 64])
def test_good_source_is_accepted(name: str) -> None:
    """Accept letters, digits, dots, dashes and underscores."""
    assert source(name) == f"publish:{name}"


@pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "a:b", "a/b", "x" * 65, "é", "a\n", "a\0"])
def test_bad_source_is_refused(name: str) -> None:
    """Refuse any other name, and say which are good."""
    with pytest.raises(InvalidArgs, match="1 to 64 letters"):
        source(name)


def test_object_is_made() -> None:
    """Make the object under the publisher's source."""
    item = make_object(WHO, "net", "interface", "eth0", {"mtu": 1500, "up": True})
    assert item.identity == Identity(WHO, "net", "interface", "eth0")
    assert item.properties == {"mtu": 1500, "up": True}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", ["", "x", "é"])
def test_bad_name_is_refused(place: int, bad: str) -> None:
    """Refuse plugins, kinds and names that are empty or too long, in a short sentence."""
    names = ["plugin", "kind", "name"]
    what = names[place]
    names[place] = bad * (MAX_NAME[what] // max(1, len(bad.encode())) + 1)
    wrong = f"at most {MAX_NAME[what]} bytes" if bad else "is empty: give one"
    with pytest.raises(InvalidArgs, match=f"the {what} of .* {wrong}") as caught:
        make_object(WHO, *names, {})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("place", range(3))
def test_longest_name_is_accepted(place: int) -> None:
    """Accept names up to the limit."""
    names = ["plugin", "kind", "name"]
    names[place] = "é" * (MAX_NAME[names[place]] // 2)
    assert make_object(WHO, *names, {}).identity[place + 1] == names[place]


def test_what_json_lacks_is_converted() -> None:
    """Turn what D-Bus can carry and JSON cannot: bytes, tuples, keys that are numbers."""
    values: dict[str, Any] = {
        "mac": b"\x52\x54\x00",
        "list": ("a", [b""]),
        "map": {7: {True: b"\xff"}},
    }
    item = make_object(WHO, "net", "link", "a", values)
    assert item.properties == {"mac": "525400", "list": ["a", [""]], "map": {"7": {"True": "ff"}}}


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"eth0", "eth0"),
        (b"/srv/my data\0", "/srv/my data"),
        ("Gr\u00fc\u00dfe".encode(), "Gr\u00fc\u00dfe"),
        (b"A=1\0LANG=C\0", "A=1\nLANG=C"),
        ("ssid of guests".encode("utf-16-le"), "ssid of guests"),
        ("ssid of guests".encode("utf-16"), "ssid of guests"),
        (b"\x52\x54\x00\x12\x34\x56", "525400123456"),
        (b"\xff\xfe\xfd", "fffefd"),
        (b"Gr\xfc\xdfe", "4772fcdf65"),
        (b"\0" * 8, "0000000000000000"),
    ],
)
def test_text_in_bytes_is_text(data: bytes, shown: str) -> None:
    """Keep text in bytes as text, and hexadecimal digits only for what is none."""
    assert make_object(WHO, "net", "link", "a", {"x": data}).properties == {"x": shown}


def test_lines_in_bytes_are_lines() -> None:
    """Hide a secret that begins a line, where NULs end the lines."""
    data = b"foo=1\0api_key swordfish\0"
    assert "swordfish" not in make_object(WHO, "app", "thing", "a", {"x": data}).json()


@pytest.mark.parametrize(
    "secret", ["password=SECRETS", "mysql -u root -pSECRETS", "token: SECRETS"]
)
@pytest.mark.parametrize(
    "form",
    [
        "{}\0", "LANG=C\0{}\0", "LANG=C\0app\0{}\0shop\0",
        "\x01\x02\x7f{}\x03", "# a\n{}\nb\n", "\x00\x01\x02\x03 {}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-16", "latin-1"])
def test_secrets_in_bytes_are_hidden(secret: str, form: str, encoding: str) -> None:
    """Hide a secret in bytes of any text encoding, alone, between others, and inside of data."""
    data = form.format(secret).encode(encoding)
    values: dict[str, Any] = {"x": data, "many": [b"a", data], "map": {"y": data + b"\xff"}}
    stored = make_object(WHO, "app", "thing", "a", values).json()
    assert "[redacted]" in stored
    for shape in ("SECRETS", *("SECRETS".encode(each).hex() for each in ("utf-8", "utf-16-le"))):
        assert shape not in stored


def test_private_keys_in_bytes_are_hidden() -> None:
    """Hide private keys in DER, of OpenSSH and Kerberos, and leave public keys and certificates."""
    private = (b"\x30\x82\x04\xbd\x02\x01\x00\x30\x0d\xaa", b"\x30\x77\x02\x01\x01\x04\x20\xaa")
    private += (b"openssh-key-v1\0\0\0\xaa", b"\x05\x02\0\0\0\x3f" + bytes(range(40)))
    public = (b"\x30\x82\x01\x22\x30\x0d\x06\x09\xaa", b"\x30\x82\x03\xbd\x30\x82\x02\xaa")
    public += (b"\x05\x02\0\xaa\xbb\xcc",)
    values = {"private": [*private], "public": [*public]}
    shown = make_object(WHO, "app", "thing", "a", values).properties
    assert shown == {"private": ["[redacted]"] * 4, "public": [each.hex() for each in public]}


@pytest.mark.parametrize(
    ("number", "string"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_numbers_that_json_lacks_become_strings(number: float, string: str) -> None:
    """Keep numbers that are not finite as the strings that protobuf's JSON has for them."""
    item = make_object(WHO, "net", "link", "a", {"x": [{"y": number}], "z": number})
    assert item.properties == {"x": [{"y": string}], "z": string}


def _nested(levels: int, kind: type) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = {"x": value} if kind is dict else kind([value])
    return value


@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_deep_nesting_is_refused(kind: type) -> None:
    """Refuse properties nested past the limit, and accept the limit itself."""
    assert make_object(WHO, "p", "k", "n", {"x": _nested(MAX_DEPTH - 1, kind)})
    for levels in (MAX_DEPTH, 500):
        with pytest.raises(InvalidArgs, match=f"p/k/n .* deeper than {MAX_DEPTH} levels"):
            make_object(WHO, "p", "k", "n", {"x": _nested(levels, kind)})


def test_too_many_bytes_are_refused() -> None:
    """Refuse properties past the limit, counted in bytes of JSON, and accept the limit itself."""
    room = MAX_BYTES - len('{"x":""}')
    assert make_object(WHO, "p", "k", "n", {"x": "a" * room})
    with pytest.raises(
        InvalidArgs, match=f"p/k/n has {MAX_BYTES + 1} bytes .* {MAX_BYTES} at most"
    ):
        make_object(WHO, "p", "k", "n", {"x": "a" * (room + 1)})
    with pytest.raises(InvalidArgs, match="bytes of properties"):
        make_object(WHO, "p", "k", "n", {"x": "é" * (room // 2 + 1)})


def test_secrets_are_hidden() -> None:
    """Let no secret in: not in properties, not in names, not by the kind."""
    item = make_object(
        WHO, "db", "link", "ftp://u:SEC@h/", {"password": "SEC", "l": ["--token", "SEC"]}
    )
    assert "SEC" not in repr(item)
    assert item.properties == {"password": REDACTED, "l": ["--token", REDACTED]}
    assert make_object(WHO, "k8s", "secret", "a", {"value": "SEC"}).properties == {
        "value": REDACTED
    }


def test_secret_in_a_refusal_is_hidden() -> None:
    """Name the refused object without its secrets, for refusals are logged and sent."""
    for name, properties in (
        ("ftp://u:SEC@h/", {"x": _nested(MAX_DEPTH, list)}),
        ("ftp://u:SEC@h/", {"x": "y" * MAX_BYTES}),
    ):
        with pytest.raises(InvalidArgs) as caught:
            make_object(WHO, "p", "k", name, properties)
        assert "SEC" not in str(caught.value)


JOBS = [
    ("backup", "job", "home", {"state": "failed", "keep": {"days": 3}}),
    ("backup", "job", "mail", {"note": "tape", "described_by": ["note"]}),
]


def test_objects_are_described_by_the_named_properties() -> None:
    """Note the names in each object, but for one that names its own."""
    home, mail = describe(JOBS, ["keep.days", "state"])
    assert home[3] == {**JOBS[0][3], "described_by": ["keep.days", "state"]}
    assert mail == JOBS[1]
    # names are no values, and stay through redaction
    assert make_object(WHO, *home).properties["described_by"] == ["keep.days", "state"]


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        (["stat"], "'stat', which no object has"),
        (["keep2.days"], "'keep2.days', which no object has"),
        (["x" * 9999], "which no object has"),
        (["state", ""], "up to 16 names"),
        ([1], "up to 16 names"),
        (["state"] * 17, "up to 16 names"),
        (["keep.password"], "'keep.password', whose values are hidden"),
    ],
)
def test_bad_descriptions_are_refused(keys: list[Any], fault: str) -> None:
    """Refuse names that no object has, too many, and those of secrets, in a short sentence."""
    with pytest.raises(InvalidArgs, match=fault) as caught:
        describe(JOBS, keys)
    assert len(str(caught.value)) < 200
