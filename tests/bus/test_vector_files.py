"""Files of vectors: their memory counts for a user until the last program has closed them."""

import asyncio
import mmap
import os
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from harness.bulky import open_files
from harness.running import PATIENCE_SECONDS, work_of

from opdbus.bus.service.bulk_files import Format, VectorFiles
from opdbus.bus.service.contract import Caller
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.errors import LimitsExceeded

# A row is a MiB.
WIDE = Format("float32", 1 << 18)


def run(work: Callable[[VectorFiles], Awaitable[None]]) -> None:
    """Do work with files of which none is open at the end."""
    before = open_files(settled=True)

    async def both() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await work(VectorFiles())

    asyncio.run(both())
    assert open_files(settled=True) == before


def handed_out(files: VectorFiles, mib: int, uid: int = 1000) -> Descriptor:
    """Make a file of so many MiB for a user, of which one is written."""
    with files.create(Caller(":1.5", uid), WIDE, mib) as file:
        file.write(mib - 1, np.zeros((1, WIDE.dimensions), np.float32))
        return file.seal()


def refused(files: VectorFiles, mib: int, uid: int, words: str) -> None:
    """Make no file of so many MiB for a user."""
    with pytest.raises(LimitsExceeded, match=words):
        handed_out(files, mib, uid)


@work_of(run)
async def test_a_file_counts_until_its_last_copy_is_closed(files: VectorFiles) -> None:
    """Refuse a user whose files fill the user's share, until the last copy of one is closed."""
    first, second = handed_out(files, 300), handed_out(files, 212)
    copy = Descriptor.copy_of(first)
    first.close()
    refused(files, 1, 1000, "take 512 of 512 MiB, and this call needs 1: close the files")
    copy.close()
    third = handed_out(files, 300)
    refused(files, 1, 1000, "of this user")
    for file in (second, third):
        file.close()


@work_of(run)
async def test_a_mapped_file_counts(files: VectorFiles) -> None:
    """Count a file that is closed but still mapped."""
    file = handed_out(files, 512)
    mapped = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    file.close()
    refused(files, 1, 1000, "of this user")
    mapped.close()
    handed_out(files, 512).close()


@work_of(run)
async def test_all_users_together_are_bounded(files: VectorFiles) -> None:
    """Refuse a third user where two have taken everything, and no user more than one's share."""
    kept = [handed_out(files, 512, uid) for uid in (1000, 1001)]
    refused(files, 1, 1002, "of all users that run, .* take 1024 of 1024 MiB")
    kept.pop().close()
    kept.append(handed_out(files, 512, 1002))
    for file in kept:
        file.close()


def test_a_file_that_was_not_handed_out_counts_no_more() -> None:
    """Free what a call has written that fails."""

    async def work(files: VectorFiles) -> None:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                _fail(files)

    def _fail(files: VectorFiles) -> None:
        with files.create(Caller(":1.5", 1000), WIDE, 512):
            raise ZeroDivisionError

    run(work)


@work_of(run)
async def test_a_closed_files_memory_cannot_be_kept(files: VectorFiles) -> None:
    """Empty a closed file, which O_PATH would otherwise keep whole without being counted."""
    file = handed_out(files, 8)
    path = os.open(f"/proc/self/fd/{file.fileno()}", os.O_PATH)
    assert os.fstat(path).st_blocks == 2048
    file.close()
    while os.fstat(path).st_blocks:  # noqa: ASYNC110 -- the kernel tells nobody
        await asyncio.sleep(0.01)
    os.close(path)


@work_of(run)
async def test_no_other_user_can_open_a_file_again(files: VectorFiles) -> None:
    """Let only the service's own user open the file by its path: it would not be counted."""
    file = handed_out(files, 1)
    assert os.fstat(file.fileno()).st_mode & 0o7777 == 0o600
    file.close()
