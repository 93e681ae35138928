"""Objects that wait for their vectors are as many as there are, whatever they are counted by."""

from types import SimpleNamespace
from typing import Any

from harness.house import House, lived

from opdbus.bus.service.state1 import StateInterface
from opdbus.cli.status import EMPTY, describe_host
from opdbus.drift.tracker import Tracker
from opdbus.index.health import Health
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.observe.supervisor import Supervisor
from opdbus.state.object import FILE, Identity, StateObject


@lived(engine=False)
async def test_no_more_objects_wait_than_there_are(made: House) -> None:
    """Count an object once that is declared and observed under two names, as a first start has."""
    tracker = Tracker(made.memory)
    made.memory.declarations = tracker.declarations
    made.memory.notify = tracker.on_event
    await tracker.begin()
    names = [f"u{number}" for number in range(9)]
    declared = [StateObject(Identity(FILE, "systemd", "unit", name), {}) for name in names]
    observed = [
        StateObject(Identity("live:systemd", "systemd", "unit", f"{name}.service"), {})
        for name in names
    ]
    await made.memory.observe(observed, set(), {})
    await made.declare(*declared)
    while await tracker.work():
        pass
    loader = StateFileLoader(made.serving.config.state_dir / "none.json", made.memory)
    fixed: Any = SimpleNamespace(count_first_stage=lambda: 0)
    interface = StateInterface(
        made.vectors,
        fixed,
        made.insight,
        loader,
        Health(made.vectors, loader),
        Supervisor([], made.memory),
        tracker,
        fixed,
        fixed,
    )
    values = await interface.properties()
    assert (values["Count"], values["Pending"], values["Vectorized"]) == (9, 9, 0)
    shown = describe_host({**EMPTY, **values, "Level": "medium"})["Objects"]
    assert shown == "9, 9 of which wait for their vectors"
