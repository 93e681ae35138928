"""Prompts: an administrator's questions, with the tools that answer them."""

from typing import Any

from mcp.server.mcpserver import MCPServer


def add_prompts(server: MCPServer[Any]) -> None:
    """Add the prompts to a server."""

    @server.prompt(title="Why is it down?", description="Find out why a service is down")
    def why_is_it_down(name: str) -> str:
        return (
            f"Why is {name} down on this host? Call `show` of it, then `around` with the event"
            f' "{name} failed", then `similar` or `changes` of what may have caused it. Say what is'
            " certain and what is a guess, with times and row numbers. Change nothing."
        )

    @server.prompt(title="What changed before?", description="List what changed before a time")
    def what_changed_before(time: str, within: str = "1h") -> str:
        return (
            f"What changed on this host in the {within} before {time}? Call `around` with that time"
            " and span, and follow its cursor. Group them by cause, the most important first."
        )

    @server.prompt(title="Is it as declared?", description="Compare the host with its declaration")
    def is_it_as_declared() -> str:
        return (
            "Is this host as its state file declares it? Call `drift`, then `changes` of what"
            " is other than declared, to see when and why. Name what is not compared."
        )
