"""A file system that hangs: one of FUSE that nobody serves, in namespaces of this process."""

import ctypes
import os
from pathlib import Path

_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000


def mount_what_hangs(folder: Path) -> None:
    """Mount it on a folder, for this process only, which has one thread; raises OSError."""
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS | _NEW_USERS):
        raise OSError(ctypes.get_errno(), "this user may make no namespaces")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"hung", bytes(folder), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "this user may mount no file system of FUSE")
