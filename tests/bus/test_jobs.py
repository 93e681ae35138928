"""Jobs: seen while they run and a while longer, told in time, cancelled by their owner."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from harness.running import PATIENCE_SECONDS, work_of

from opdbus.bus import names
from opdbus.bus.service.contract import Caller
from opdbus.bus.service.job1 import KEPT, Job, Jobs
from opdbus.errors import AccessDenied, Cancelled, LimitsExceeded

OWNER = Caller(":1.5", 1000)


class Told(list[tuple[str, Mapping[str, Any]]]):
    """What was told, (path, properties) each; `news` is set whenever more is."""

    def __init__(self) -> None:
        super().__init__()
        self.news = asyncio.Event()


def run(work: Callable[[Jobs, Told], Awaitable[None]], keep_seconds: float = 60.0) -> None:
    """Do work as a caller, with jobs and what is told of them."""
    told = Told()

    def tell(path: str, interface: str, properties: Mapping[str, Any]) -> None:
        assert interface == names.JOB
        told.append((path, properties))
        told.news.set()

    async def both() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await work(Jobs(tell, keep_seconds=keep_seconds), told)

    asyncio.run(both())


async def _nothing() -> None:
    return


async def _for_ever() -> None:
    await asyncio.Event().wait()


@work_of(run)
async def test_a_job_shows_how_far_it_is(jobs: Jobs) -> None:
    """Give every property of the contract, from nothing done to all done."""
    with jobs.begin("bulk", 4, OWNER, is_seen=True) as job:
        assert (await job.properties()).keys() == job.info.properties.keys()
        job.advance(1)
        assert await job.properties() == {
            "Kind": "bulk", "Progress": 0.25, "Done": 1, "Total": 4, "State": "running",
            "Caller": ":1.5", "User": 1000,
        }  # fmt: skip
        await job.run(_nothing())
        job.advance(2)
    values = await job.properties()
    assert (values["State"], values["Progress"], values["Total"]) == ("done", 1.0, 3)


@work_of(run)
async def test_jobs_have_paths_of_their_own(jobs: Jobs) -> None:
    """Find each job by its path, the folder of them all, and nothing else."""
    changes = []
    jobs.on_change = lambda: changes.append(jobs.paths())
    with jobs.begin("bulk", 1, OWNER, is_seen=True), jobs.begin("bulk", 2, OWNER, is_seen=True):
        assert jobs.paths() == ["/org/opdbus/job/1", "/org/opdbus/job/2"]
        node = jobs.find("/org/opdbus/job/2")
        assert node
        (interface,) = node.interfaces
        assert (await interface.properties())["Total"] == 2
        folder = jobs.find("/org/opdbus/job")
        assert folder
        assert folder.children() == ["1", "2"]
        assert jobs.find("/org/opdbus/job/3") is None
        assert jobs.find("/org/opdbus/job/01") is None
    assert changes == [["/org/opdbus/job/1"], ["/org/opdbus/job/1", "/org/opdbus/job/2"]]


@work_of(run, handed=2)
async def test_progress_is_told_now_and_then_and_the_end_at_once(jobs: Jobs, told: Told) -> None:
    """Put a thousand steps into one signal, and never keep the end waiting."""
    with jobs.begin("bulk", 1000, OWNER, is_seen=True) as job:
        for _ in range(1000):
            job.advance(1)
        assert [values["Done"] for _, values in told] == [0]
    assert [(v["Done"], v["State"]) for _, v in told] == [(0, "running"), (1000, "done")]
    with jobs.begin("bulk", 10, OWNER, is_seen=True) as job:
        job.advance(1)
        told.news.clear()
        await told.news.wait()
        assert (told[-1][1]["Done"], told[-1][1]["State"]) == (1, "running")


@pytest.mark.parametrize(
    ("error", "state"),
    [(LimitsExceeded("x"), "failed"), (ZeroDivisionError(), "failed"),
     (asyncio.CancelledError(), "cancelled"), (Cancelled("x"), "cancelled")],
)  # fmt: skip
@work_of(run, handed=2)
async def test_a_job_remembers_how_it_ended(
    jobs: Jobs, told: Told, error: BaseException, state: str
) -> None:
    """Tell a fault from a caller that left or cancelled."""
    with pytest.raises(type(error)), jobs.begin("bulk", 1, OWNER, is_seen=True):
        raise error
    assert told[-1][1]["State"] == state


@work_of(run, handed=2, keep_seconds=0.01)
async def test_jobs_that_ended_go_after_a_while(jobs: Jobs, told: Told) -> None:
    """Forget a job some time after its end, tell that it is gone, and keep those that run."""
    gone = asyncio.Event()
    with jobs.begin("bulk", 1, OWNER, is_seen=True):
        with jobs.begin("bulk", 1, OWNER, is_seen=True):
            pass
        jobs.on_change = gone.set
        await gone.wait()
        assert jobs.paths() == ["/org/opdbus/job/1"]
        assert told[-1] == ("/org/opdbus/job/2", {})


@work_of(run)
async def test_no_more_than_a_hundred_ended_jobs_are_kept(jobs: Jobs) -> None:
    """Forget the oldest of many jobs before their time, but never one that runs."""
    with jobs.begin("bulk", 1, OWNER, is_seen=True):
        for _ in range(KEPT + 5):
            with jobs.begin("bulk", 1, OWNER, is_seen=True):
                pass
        numbers = [int(name) for name in jobs.names()]
        assert numbers == [1, *range(7, KEPT + 7)]


async def _running(jobs: Jobs) -> tuple[Job, asyncio.Task[None]]:
    begun: asyncio.Future[Job] = asyncio.get_running_loop().create_future()

    async def body() -> None:
        with jobs.begin("bulk", 9, OWNER, is_seen=True) as job:
            begun.set_result(job)
            await job.run(_for_ever())

    task = asyncio.create_task(body())
    job = await begun
    await asyncio.sleep(0)
    return job, task


@pytest.mark.parametrize("uid", [0, 1000])
@work_of(run, handed=2)
async def test_owner_and_root_may_cancel(jobs: Jobs, told: Told, uid: int) -> None:
    """End the work at once, and answer Cancelled to whoever waits for it; again is nothing."""
    job, task = await _running(jobs)
    caller = Caller(":1.6", uid)
    await job.cancel(caller)
    with pytest.raises(Cancelled, match="when 0 of 9 were done"):
        await task
    assert told[-1][1]["State"] == "cancelled"
    await job.cancel(caller)
    assert job.state == "cancelled"


@work_of(run)
async def test_nobody_else_may_cancel(jobs: Jobs) -> None:
    """Raise AccessDenied for another user, and let the work go on."""
    job, task = await _running(jobs)
    with pytest.raises(AccessDenied, match="uid 1001 may not cancel"):
        await job.cancel(Caller(":1.6", 1001))
    assert (job.state, task.done()) == ("running", False)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job.state == "cancelled"
