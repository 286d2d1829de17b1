"""Disks that can be full: file systems in memory that are made no larger than what is on them.

They are mounted where only this process and its children see them, and go with the last of these,
however it ends. That takes Linux and the right to mount; elsewhere nothing is mounted, and
:func:`own_mounts` says why.
"""

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNS = 0x20000
_ROOMY = "2g"
"""What a disk may hold that is not full; only what is on it takes memory."""


def own_mounts() -> str:
    """Give this process mounts of its own; return why it cannot have them, or nothing.

    Call it before there is a second thread: others would stay among the mounts of everybody.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting takes root on Linux"
    if ctypes.CDLL(None).unshare(_CLONE_NEWNS) != 0:
        return "mounting is not permitted"
    private = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, check=False)
    return "mounting is not permitted" if private.returncode else ""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A file system of its own at a folder, which is made."""

    folder: Path

    def mount(self) -> None:
        """Begin empty, with room."""
        self.folder.mkdir(mode=0o755)
        _mount("-t", "tmpfs", "-o", f"size={_ROOMY},mode=755", "tmpfs", str(self.folder))

    def fill(self) -> None:
        """Leave room for nothing more; what is written meanwhile counts to what is there."""
        while True:
            found = os.statvfs(self.folder)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            try:
                return self._resize(str(used))
            except subprocess.CalledProcessError:
                continue  # it has grown since

    def free(self) -> None:
        """Make room again."""
        self._resize(_ROOMY)

    def unmount(self) -> None:
        """Give up what is on it, whoever still uses it."""
        subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)

    def _resize(self, size: str) -> None:
        _mount("-o", f"remount,size={size}", str(self.folder))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], capture_output=True, check=True)
