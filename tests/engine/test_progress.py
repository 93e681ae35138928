"""What takes minutes is told of."""

import threading

import pytest
import structlog

from opdbus.engine.sessions import log_compiling


def test_compiling_is_told_from_begin_to_end() -> None:
    """Log the begin, that it goes on, and the end with the seconds that it took."""
    goes_on = threading.Event()

    def note(_logger: object, _name: str, event: structlog.typing.EventDict) -> str:
        logged.append(dict(event))
        if event["event"] == "still compiling":
            goes_on.set()
        raise structlog.DropEvent

    logged: list[dict[str, object]] = []
    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    try:
        with log_compiling("tensorrt", every=0.01):
            assert goes_on.wait(10)
        told = len(logged)
        assert not any(thread.name == "compiling" for thread in threading.enumerate())
    finally:
        structlog.configure(**before)
    events = [str(line["event"]) for line in logged]
    assert events[0].startswith("compiling the model")
    assert set(events[1:-1]) == {"still compiling"}
    assert events[-1] == "compiled"
    assert told == len(logged)
    assert {line["provider"] for line in logged} == {"tensorrt"}


def test_a_failure_ends_the_telling() -> None:
    """Let what goes wrong through, and stop."""
    with pytest.raises(ValueError, match="no room"), log_compiling("tensorrt", every=0.01):
        raise ValueError("no room")
    assert not any(thread.name == "compiling" for thread in threading.enumerate())
