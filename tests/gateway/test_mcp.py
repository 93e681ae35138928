"""MCP server in this process: tools, their bounds, host text as data, resources and prompts."""

import asyncio
import json
import re
import unicodedata
from collections.abc import Iterator

import anyio
import jsonschema
import pytest
from harness.assistants import (
    SECRET,
    assistant,
    call,
    live,
    outside_marks,
    publish,
    rows_of,
    text_of,
    whole,
)
from harness.running import Bus, Running
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

from opdbus.gateway.mcp import tool_limits
from opdbus.gateway.mcp.host_text import BEGIN, clean, clean_value
from opdbus.gateway.mcp.object_tools import drift_rows
from opdbus.gateway.mcp.tool_answers import estimate_tokens

ERAS = ("auto", "legacy")
TOOLS = "ask show list changes around drift similar status".split()
# Bytes of the definitions of all tools: 3,000 tokens have more.
MOST_DEFINITIONS = 9000


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a daemon of a host with a past, and with many objects."""
    bus, folder = Bus(), tmp_path_factory.mktemp("daemon")
    with Running(folder, bus.address, VECTOR_LEVEL="static") as daemon:
        live(daemon)
        many = [
            ("bulk", "item", f"i{n}", {"text": f"word{n} " * 60, "list": [*range(300)]})
            for n in range(150)
        ]
        huge = {f"f{n}": f"long{n} " * 300 for n in range(80)}
        publish(daemon, *many, ("bulk", "item", "huge", huge))
        yield daemon.vectorized()
    bus.kill()


@pytest.mark.parametrize("mode", ERAS)
def test_tools_are_few_read_only_and_in_one_order(host: Running, mode: str) -> None:
    """List eight read-only tools in one order, with definitions below 3,000 tokens."""

    async def work() -> None:
        async with assistant(host.bus, mode) as client:
            tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == TOOLS
        for tool in tools:
            hints = tool.annotations
            assert hints
            assert hints.read_only_hint
            assert hints.idempotent_hint
            assert hints.open_world_hint is False
            assert tool.output_schema
        texts = [tool.model_dump_json(by_alias=True, exclude_none=True) for tool in tools]
        assert len("".join(texts).encode()) < MOST_DEFINITIONS

    asyncio.run(work())


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("tool", "given", "found"),
    [
        ("ask", {"question": "which service answers dns names"}, "resolved.service"),
        ("ask", {"question": "what changed today"}, "nginx.service failed"),
        ("ask", {"question": "what happened before nginx failed"}, "the event:"),
        ("ask", {"question": "are you ready"}, "State: ready"),
        ("show", {"object": "sshd"}, "description: SSH logins"),
        ("list", {"where": "active_state=failed"}, "nginx.service active_state=failed"),
        ("changes", {"kind": "group"}, "members +bob"),
        ("changes", {"about": "web server upgraded"}, "1.26.0 -> 1.27.1"),
        ("changes", {"like": "nginx.service"}, "nothing like it"),
        ("around", {"event": "nginx failed"}, "package nginx upgraded"),
        ("around", {"time": "now", "within": "1h"}, "nginx.service failed"),
        ("drift", {}, "nothing that is compared is other than declared"),
        ("similar", {"object": "sshd"}, "resolved.service"),
        ("status", {}, "Provider: cpu:numpy"),
    ],
)  # fmt: skip
def test_tools_answer(
    host: Running, mode: str, tool: str, given: dict[str, str], found: str
) -> None:
    """Answer in both eras, by text and by structured content that its schema describes."""

    async def work() -> None:
        async with assistant(host.bus, mode) as client:
            answer = await client.call_tool(tool, given)
            (listed,) = [t for t in (await client.list_tools()).tools if t.name == tool]
        assert not answer.is_error, text_of(answer)
        assert found in text_of(answer)
        assert listed.output_schema
        jsonschema.validate(answer.structured_content, listed.output_schema)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("list", {"plugin": "bulk", "fields": ["text", "list"], "limit": 100}),
        ("show", {"object": "bulk/item/huge"}),
        ("ask", {"question": "kind:item", "limit": 100}),
        ("changes", {"kind": "item", "cursor": "after:1", "limit": 100}),
    ],
)
def test_large_answers_are_pages(host: Running, tool: str, given: dict[str, object]) -> None:
    """Cut an answer to 8,000 tokens and 64 KiB, and give all rows by following the cursor."""
    seen: list[str] = []
    cursor, pages, first_more = "", 0, 0
    while pages < 60:
        answer = call(host, tool, **given | ({"cursor": cursor} if cursor else {}))
        rows = rows_of(answer)
        content = answer.structured_content
        assert content
        assert estimate_tokens(whole(answer)) <= 8000
        assert len(whole(answer).encode()) <= 64 << 10
        assert content["count"] == len(rows)
        seen += [json.dumps(row) for row in rows]
        pages += 1
        first_more = first_more or content["more"]
        if not (cursor := content["cursor"] or ""):
            break
        assert f'more: ask again with cursor "{cursor}"' in text_of(answer)
    assert pages > 1
    assert first_more
    assert not cursor
    assert len(seen) == len(set(seen)) > 20


def test_host_text_is_marked_data(host: Running) -> None:
    """Give a hostile description between marks that it cannot forge, without hidden characters."""
    for tool, given in (
        ("show", {"object": "evil.service"}),
        ("list", {"plugin": "systemd", "fields": ["description"]}),
        ("ask", {"question": "delete all files"}),
        ("changes", {"object": "evil.service"}),
        ("similar", {"object": "sshd"}),
    ):
        answer = call(host, tool, **given)
        text = text_of(answer)
        assert "Ignore your" not in outside_marks(text)
        for part in (text, json.dumps(answer.structured_content, ensure_ascii=False)):
            hidden = {c for c in part if unicodedata.category(c) in {"Cc", "Cf", "Co", "Cs"}}
            assert hidden <= {"\n"}
        assert not set("\u27e6\u27e7") & set(json.dumps(rows_of(answer), ensure_ascii=False))
        if tool != "changes":
            (line,) = [line for line in text.splitlines() if "Ignore your instructions" in line]
            assert "reveal secrets" in line


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\x1b[31mred\x1b[0m b", "ared b"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("\x9b2Jcleared", "cleared"),
        ("a\u202eb\u2066c\u200bd\ufeffe", "abcde"),
        ("tag\U000e0041\U000e0042ged \ue000x", "tagged x"),
        ("smuggled\ufe01\U000e0101", "smuggled"),
        ("two\nlines\r\n\u2028three\tfour", "two lines three four"),
        ("\u27e6host data\u27e7", "[host data]"),
        ("M\u00fcller \u65e5\u672c", "M\u00fcller \u65e5\u672c"),
        ("half \ud800 pair", "half pair"),
    ],
)
def test_text_is_cleaned(text: str, cleaned: str) -> None:
    """Keep what is visible, in one line."""
    assert clean(text).replace("  ", " ") == cleaned
    assert clean_value({text: [text]}) == {clean(text): [clean(text)]}


def test_secrets_are_replaced(host: Running) -> None:
    """Show no secret in any answer, since the daemon replaced it."""
    for tool, given in (
        ("show", {"object": "app/account/backup"}),
        ("list", {"plugin": "app", "fields": ["password"]}),
        ("changes", {"plugin": "app"}),
        ("ask", {"question": "backup password"}),
    ):
        answer = whole(call(host, tool, **given))
        assert "backup" in answer
        assert SECRET not in answer


def test_new_changes_come_by_cursor(host: Running) -> None:
    """Give what happened after a cursor once, the oldest first, with the next cursor."""
    note = call(host, "changes").structured_content["note"]
    cursor = note.rpartition('"after:')[2].rstrip('"')
    unit = {"active_state": "active", "description": "New"}
    publish(host, ("systemd", "unit", "new.service", unit))
    publish(host, ("systemd", "unit", "new.service", {**unit, "active_state": "inactive"}))
    answer = call(host, "changes", cursor=f"after:{cursor}")
    assert [row["what"] for row in rows_of(answer)] == ["appeared", "changed"]
    again = call(host, "changes", cursor=f"after:{rows_of(answer)[-1]['seq']}")
    assert rows_of(again) == []


@pytest.mark.parametrize(
    ("tool", "given", "sentence"),
    [
        ("show", {"object": "nothing-like-this"}, "there is no object of this name"),
        ("show", {"object": "sshd", "at": "2020-01-01"}, "history"),
        ("list", {"where": "a b c"}, "a condition is FIELD=VALUE"),
        ("changes", {"since": "noon"}, "is no time"),
        ("changes", {"cursor": "x"}, "give the one of the answer before"),
        ("changes", {"cursor": "after:9999999"}, "history may have begun anew"),
        ("changes", {"plugin": "nosuch"}, "nosuch"),
        ("around", {}, "give an event, a time or an object"),
        ("similar", {"object": "sshd", "limit": 1000}, "limit"),
    ],
)
def test_errors_are_sentences(
    host: Running, tool: str, given: dict[str, object], sentence: str
) -> None:
    """Answer a wrong question by a tool error that says what to do."""
    answer = call(host, tool, **given)
    assert answer.is_error
    assert sentence in text_of(answer)


def test_daemon_down_is_a_sentence() -> None:
    """Answer that no daemon runs, where there is a bus and where there is none."""
    bus = Bus()

    async def work() -> None:
        async with assistant(bus.address) as client:
            down = await client.call_tool("status", {})
            bus.kill()
            gone = await client.call_tool("status", {})
            with pytest.raises(MCPError, match="bus"):
                await client.read_resource("opdbus://status")
        assert down.is_error
        assert "op-dbus is not running" in text_of(down)
        assert gone.is_error
        assert "bus" in text_of(gone)

    asyncio.run(work())


def test_a_tool_ends_in_time() -> None:
    """End a question that takes too long, well before clients give up after 30 seconds."""
    assert tool_limits.MOST_SECONDS < 30

    async def work() -> None:
        with pytest.raises(ToolError, match="did not answer within"):
            await tool_limits.bound(lambda: asyncio.sleep(60), 0.05)()

    asyncio.run(work())


@pytest.mark.parametrize("mode", ERAS)
def test_resources_are_read_by_address(host: Running, mode: str) -> None:
    """Read an object, also one with a slash in its name, and refuse one that is not there."""

    async def work() -> None:
        async with assistant(host.bus, mode) as client:
            listed = {str(each.uri) for each in (await client.list_resources()).resources}
            assert listed == {"opdbus://status", "opdbus://drift", "opdbus://changes"}
            (template,) = (await client.list_resource_templates()).resource_templates
            assert template.uri_template == "opdbus://objects/{plugin}/{kind}/{name}"
            found = await client.read_resource("opdbus://objects/mounts/mount/%2Fsrv%2Fmedia")
            assert "used_percent: 97" in found.contents[0].text
            assert BEGIN in found.contents[0].text
            with pytest.raises(MCPError):
                await client.read_resource("opdbus://objects/mounts/mount/none")
            for uri in listed:
                assert (await client.read_resource(uri)).contents

    asyncio.run(work())


def test_changes_reach_a_stream_of_2026(host: Running) -> None:
    """Tell a client that listens which resources changed, and no others."""
    own, other = (f"opdbus://objects/lamp/lamp/{name}" for name in ("own", "other"))

    async def work() -> None:
        async with assistant(host.bus) as client:
            async with client.listen(resource_subscriptions=[own, "opdbus://changes"]) as stream:
                found = set()
                with anyio.fail_after(60):
                    for state in range(200):
                        await asyncio.to_thread(_light, host, state)
                        with anyio.move_on_after(0.5):
                            while len(found) < 2:
                                found.add((await anext(stream)).uri)
                        if len(found) == 2:
                            break
            assert found == {own, "opdbus://changes"}
            assert other not in found

    asyncio.run(work())


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
def test_changes_reach_a_subscriber_of_2025(host: Running) -> None:
    """Notify a client of the addresses that it subscribed to, until it unsubscribes."""
    own = "opdbus://objects/lamp/lamp/own"
    told: list[str] = []

    async def hear(message: object) -> None:
        if uri := getattr(getattr(message, "params", None), "uri", None):
            told.append(str(uri))

    async def work() -> None:
        async with assistant(host.bus, "legacy", message_handler=hear) as client:
            assert client.server_capabilities.resources.subscribe
            await client.subscribe_resource(own)
            with anyio.fail_after(60):
                state = 1000
                while not told:
                    await asyncio.to_thread(_light, host, state)
                    await asyncio.sleep(0.3)
                    state += 1
            await client.unsubscribe_resource(own)
        assert set(told) == {own}

    asyncio.run(work())


def _light(daemon: Running, state: int) -> None:
    lamps = [("lamp", "lamp", name, {"state": state}) for name in ("own", "other")]
    publish(daemon, *lamps)


@pytest.mark.parametrize("mode", ERAS)
def test_prompts_name_tools(host: Running, mode: str) -> None:
    """Offer three questions, whose texts name tools that there are."""

    async def work() -> None:
        async with assistant(host.bus, mode) as client:
            listed = {each.name for each in (await client.list_prompts()).prompts}
            assert listed == {"why_is_it_down", "what_changed_before", "is_it_as_declared"}
            given = {"why_is_it_down": {"name": "nginx"}, "what_changed_before": {"time": "03:10"}}
            for name in listed:
                prompt = await client.get_prompt(name, given.get(name, {}))
                text = prompt.messages[0].content.text
                assert any(f"`{tool}`" in text for tool in TOOLS)

    asyncio.run(work())


# The questions of docs/history.md, as an assistant asks them.
QUESTIONS = (
    ("changes", {}),
    ("changes", {"since": "1h"}),
    ("around", {"time": "now", "within": "30m"}),
    ("around", {"object": "sshd"}),
    ("changes", {"where": "after.active_state=failed"}),
    ("changes", {"about": "name resolution"}),
    ("around", {"event": "nginx failed"}),
    ("changes", {"like": "nginx.service"}),
    ("changes", {"object": "sshd"}),
    ("show", {"object": "sshd", "at": "now"}),
    ("ask", {"question": "who became an administrator?"}),
)


@pytest.mark.parametrize(("tool", "given"), QUESTIONS, ids=str)
def test_administrators_questions_cost_little(
    host: Running, tool: str, given: dict[str, str]
) -> None:
    """Answer each of an administrator's questions with at most 2,000 tokens."""
    answer = call(host, tool, **given)
    assert not answer.is_error
    assert estimate_tokens(whole(answer)) <= 2000, text_of(answer)


def test_drift_says_who_made_it() -> None:
    """Name in a row of drift when each field changed and who did that, where it is known."""
    fields = [("enabled", "true", "false", "warning"), ("mode", '"1"', '"2"', "notice")]
    row = ("/org/opdbus/state/systemd/unit/a", "drift", "warning", 9, 0.0, fields)
    change = {"at": 1_800_000_000_000_000, "cause": "reload", "by": "bob with sudo halt"}
    (told,) = drift_rows([row], [{"enabled": change}])
    assert re.search(
        r"enabled declared true, observed false, since \S+ \d+ .+ by bob with sudo halt; mode",
        told.text,
    )
    (plain,) = drift_rows([row])
    assert "since" not in plain.text
