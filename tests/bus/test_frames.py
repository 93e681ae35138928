"""Messages as bytes: measured and told apart before they are decoded."""

import struct
from contextlib import suppress
from typing import Any

import pytest
from harness import marshal
from harness.marshal import Variant
from harness.running import longest_share
from hypothesis import given
from hypothesis import strategies as st

from opdbus.bus.transport import frames
from opdbus.bus.transport.library import Message, MessageFlag, MessageType, decode, encode
from opdbus.bus.transport.library import Variant as ListVariant
from opdbus.bus.transport.message_socket import Frame
from opdbus.bus.transport.messages import Call
from opdbus.bus.transport.values import Typed, from_wire, to_wire

_NAMES = st.from_regex(r"\A[a-z]{1,9}\.[A-Za-z_]{1,9}\Z")
_PATHS = st.from_regex(r"\A(/[a-z0-9_]{1,40}){1,5}\Z")


@given(
    path=_PATHS,
    interface=st.none() | _NAMES,
    member=st.from_regex(r"\A[A-Z][a-z]{0,20}\Z"),
    sender=st.integers(0, 10**9).map(lambda n: f":1.{n}"),
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    flags=st.sampled_from([0, 1, 2, 4, 5]),
    serial=st.integers(1, (1 << 32) - 1),
)
def test_a_header_is_read_as_the_library_wrote_it(
    path: str, interface: str | None, member: str, text: str, serial: int, **more: Any
) -> None:
    """Give every field of a header, whatever precedes it, and the message's size to the byte."""
    message = Message(
        destination="a.b", path=path, interface=interface, member=member, sender=more["sender"],
        flags=MessageFlag(more["flags"]), signature="s", body=[text], serial=serial,
    )  # fmt: skip
    message.unix_fds = [1, 2]
    data = _with_sender(message, encode(message))
    body = 4 + len(text.encode()) + 1
    assert frames.measure(b"before" + data, 6) == (len(data) - body, len(data))
    found = frames.parse_header(data)
    assert found == frames.Header(
        frames.METHOD_CALL, more["flags"], serial, path, interface or "", member,
        more["sender"], "s", 0, 2,
    )  # fmt: skip
    # the header alone suffices
    assert frames.parse_header(data[: frames.measure(data).header]) == found
    assert decode(data).body == [text]


def _with_sender(message: Message, data: bytes) -> bytes:
    """Add the sender to a message's header, as the bus does: the library writes none."""
    size = frames.measure(data).header
    (fields,) = struct.unpack_from("<I", data, 12)
    sender = (message.sender or "").encode()
    field = struct.pack("<BBcBI", 7, 1, b"s", 0, len(sender)) + sender + b"\0"
    padded = data[16 : 16 + fields] + bytes(-fields & 7) + field
    header = data[:12] + struct.pack("<I", len(padded)) + padded + bytes(-len(padded) & 7)
    return header + data[size:]


def test_big_endian_is_read() -> None:
    """Read a message of a machine of the other byte order."""
    fields = struct.pack(">BBcBI4sB3x", 1, 1, b"o", 0, 4, b"/a/b", 0)
    fields += struct.pack(">BBcBI", 9, 1, b"u", 0, 3)
    data = struct.pack(">cBBBIII", b"B", 4, 1, 1, 8, 77, len(fields)) + fields + bytes(8)
    assert frames.measure(data) == (len(data) - 8, len(data))
    found = frames.parse_header(data)
    assert (found.kind, found.serial, found.path, found.descriptors) == (4, 77, "/a/b", 3)


@pytest.mark.parametrize("code", [0, 6, 10, 100, 255])
@pytest.mark.parametrize(
    ("signature", "value"),
    [
        *(("y", 1), ("b", 1), ("n", -1), ("q", 1), ("i", -1), ("x", -1), ("t", 1), ("d", 0.5)),
        *(("h", 0), ("s", "text"), ("g", "a{sv}"), ("ay", [1, 2, 3]), ("at", []), ("aat", [[1]])),
        *(("(yt)", (1, 2)), ("a(yt)", [(1, 2), (3, 4)]), ("a{sv}", {"k": Variant("ai", [1, 2])})),
        *(
            ("v", Variant("v", Variant("(yv)", (1, Variant("d", 0.5))))),
            ("(y(y(t)))", (1, (2, (3,)))),
        ),
    ],
)
def test_unknown_fields_are_skipped(code: int, signature: str, value: Any) -> None:
    """Read a header whatever else somebody put into it, of any type: the specification says so."""
    fields = [(1, Variant("o", "/a/b")), (code, Variant(signature, value)), (9, Variant("u", 3))]
    # without the array's length and the padding behind it
    encoded = marshal.encode("a(yv)", [fields])[8:]
    found = frames.parse_header(b"l\1\0\1" + struct.pack("<III", 0, 7, len(encoded)) + encoded)
    assert (found.path, found.descriptors, found.serial) == ("/a/b", 3, 7)


@pytest.mark.parametrize("place", [0, 2, 6])
@pytest.mark.parametrize(
    "unknown",
    [
        {77: Variant("ay", bytes(64 << 10))},
        {0: Variant("s", "none"), 200: Variant("v", Variant("a{sv}", {"k": Variant("t", 1)}))},
        {code: Variant("y", 1) for code in range(10, 250)},
    ],
)
def test_a_call_with_unknown_fields_is_the_call_without_them(
    unknown: dict[int, Variant], place: int
) -> None:
    """Remove fields that the specification lacks wherever they stand, and keep all others."""
    known = [(1, Variant("o", "/a/b")), (2, Variant("s", "a.b")), (3, Variant("s", "C"))]
    known += [(7, Variant("s", ":1.5")), (8, Variant("g", "su")), (9, Variant("u", 0))]
    body = marshal.encode("su", ("text", 7))

    def encoded(fields: list[tuple[int, Variant]]) -> bytes:
        array = marshal.encode("a(yv)", [fields])
        start = b"l\1\0\1" + struct.pack("<III", len(body), 7, len(array) - 8)
        return start + array[8:] + bytes(-len(array) % 8) + body

    strange = encoded([*known[:place], *unknown.items(), *known[place:]])
    assert frames.parse_header(strange).has_unknown
    plain = frames.drop_unknown_fields(strange)
    assert plain == encoded(known)
    header = frames.parse_header(plain)
    assert Call.of(Frame(header, plain, len(strange), is_whole=True, descriptors=())).body == [
        "text",
        7,
    ]


@pytest.mark.parametrize("start", [b"l\1\0\2", b"l\1\0\0"])
def test_another_protocol_is_no_message(start: bytes) -> None:
    """Raise ValueError for a version of the protocol that is not ours."""
    with pytest.raises(ValueError, match="no D-Bus message"):
        frames.measure(start + bytes(12))


@given(st.binary(min_size=0, max_size=80))
def test_a_damaged_header_is_a_value_error(junk: bytes) -> None:
    """Raise nothing but ValueError, whatever a header's fields hold."""
    data = b"l\1\0\1" + struct.pack("<III", 0, 1, len(junk)) + junk
    try:
        frames.parse_header(data)
    except ValueError:
        return


_DICT = "a{oa{sa{sv}}}"
# what matters of a key is its length
_KEYS = st.integers(1, 40).map(lambda length: "/" + "a" * length)
_FIELDS = st.dictionaries(_KEYS, st.text("ab"), max_size=3)
_OBJECTS = st.dictionaries(_KEYS, st.dictionaries(_KEYS, _FIELDS, max_size=3))


def _listing(objects: dict[str, dict[str, dict[str, str]]]) -> bytes:
    typed = {
        path: {i: {k: ListVariant("s", v) for k, v in vs.items()} for i, vs in interfaces.items()}
        for path, interfaces in objects.items()
    }
    answer = Message(
        message_type=MessageType.METHOD_RETURN, reply_serial=1, destination=":1.1", signature=_DICT,
        body=[typed], serial=1,
    )  # fmt: skip
    return encode(answer)


@given(objects=_OBJECTS, size=st.sampled_from([1, 64, 300, 100_000]))
def test_a_large_dict_is_read_in_parts(
    objects: dict[str, dict[str, dict[str, str]]], size: int
) -> None:
    """All parts together have what the whole has, in its order."""
    found = {}
    for part in frames.split_dict(_listing(objects), size):
        (entries,) = decode(part).body
        assert entries
        found.update(entries)
    assert list(found) == list(objects)
    assert found == decode(_listing(objects)).body[0]


@given(objects=_OBJECTS, at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_damaged_dict_ends(
    objects: dict[str, dict[str, dict[str, str]]], at: int, value: int
) -> None:
    """A wrong length is an error or a part that cannot be decoded, never an endless loop."""
    data = bytearray(_listing(objects))
    start = frames.measure(data).header
    data[min(start + at, len(data) - 1)] = value
    with suppress(ValueError):
        assert len(list(frames.split_dict(data, 1))) <= len(data)


@given(st.dictionaries(st.text("ab", max_size=3), st.integers(-(1 << 63), (1 << 63) - 1)))
def test_the_options_of_a_call_are_read_as_the_library_wrote_them(options: dict[str, int]) -> None:
    """Give the options of a call, also where there are none, or numbers of zero bytes only."""
    body = [{name: ListVariant("x", number) for name, number in options.items()}]
    data = encode(
        Message(destination="a.b", path="/", member="C", signature="a{sv}", body=body, serial=1)
    )
    header, size = frames.parse_header(data), len(data)
    call = Call.of(Frame(header, data, size, is_whole=True, descriptors=()))
    assert call.body == [options]


_VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.binary(max_size=5),
        st.floats(allow_nan=False),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9),
        *(st.integers(0, 99).map(lambda n, code=code: Typed(code, n)) for code in "ynqiuxt"),
        st.lists(st.integers(0, 99), max_size=3).map(lambda all_: Typed("an", all_)),
        st.lists(st.tuples(st.text("ab"), st.booleans())).map(lambda all_: Typed("a(sb)", all_)),
        st.dictionaries(st.integers(0, 9), st.text("ab")).map(lambda all_: Typed("a{ys}", all_)),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=9,
)


def _message(signature: str, *body: Any) -> bytearray:
    kinds = frames.split(signature)
    values = [to_wire(kind, value) for kind, value in zip(kinds, body, strict=True)]
    message = Message(
        message_type=MessageType.METHOD_RETURN, reply_serial=1, signature=signature, body=values
    )
    return bytearray(encode(message))


@given(name=st.text("ab"), values=st.dictionaries(st.text("ab"), _VALUES, max_size=4))
def test_values_are_read_as_the_library_reads_them(name: str, values: dict[str, Any]) -> None:
    """Read a message of any types as the library does, variants taken out."""
    data = _message("sa(sssa{sv})a{sv}", name, [("a", name, "b", values)] * 2, {})
    assert frames.decode_body(data) == list(map(from_wire, decode(data).body))


@given(values=st.dictionaries(st.text("ab"), _VALUES), at=st.integers(0), value=st.integers(0, 255))
def test_damaged_values_are_a_value_error(values: dict[str, Any], at: int, value: int) -> None:
    """Raise nothing but ValueError for a message that the bus would not let through."""
    data = _message("a{sv}", values)
    start = frames.measure(data).header
    data[start + at % (len(data) - start)] = value
    with suppress(ValueError):
        frames.decode_body(data)


@pytest.mark.parametrize(
    "options",
    [
        {"a": [[Typed("y", n % 7)] for n in range(20_000)]},
        {"a": Typed("ai", list(range(60_000)))},
        {f"o{n}": n for n in range(9000)},
    ],
    ids=["nested", "numbers", "many"],
)
def test_others_run_while_a_large_call_is_read(options: dict[str, Any]) -> None:
    """Let other threads run again and again while the arguments of a large call are decoded."""
    data = _message("a{sv}", options)
    frame = Frame(frames.parse_header(data), data, len(data), is_whole=True, descriptors=())
    # the best of several: other processes stop this one, too
    assert min(longest_share(lambda: Call.of(frame).body) for _ in range(8)) < 0.25
