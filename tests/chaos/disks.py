"""Disks that can be full: in-memory file systems whose size can be limited to their content.

The mounts are visible only to this process and its children, and disappear with the last of them,
however it ends. They need Linux and the right to mount; elsewhere nothing is mounted, and
:func:`own_mounts` returns the reason.
"""

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNS = 0x20000
_ROOMY = "2g"
"""The size of a disk that is not full; only its content takes memory."""


def own_mounts() -> str:
    """Give this process private mounts; return why it cannot have them, or an empty text.

    Call it before a second thread starts: other threads would keep the shared mounts.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting takes root on Linux"
    if ctypes.CDLL(None).unshare(_CLONE_NEWNS) != 0:
        return "mounting is not permitted"
    private = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, check=False)
    return "mounting is not permitted" if private.returncode else ""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A separate file system, mounted at a new folder."""

    folder: Path

    def mount(self) -> None:
        """Mount an empty file system with free space."""
        self.folder.mkdir(mode=0o755)
        _mount("-t", "tmpfs", "-o", f"size={_ROOMY},mode=755", "tmpfs", str(self.folder))

    def fill(self) -> None:
        """Leave no free space; concurrent writes count as content."""
        while True:
            found = os.statvfs(self.folder)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            try:
                return self._resize(str(used))
            except subprocess.CalledProcessError:
                continue  # the content has grown since

    def free(self) -> None:
        """Restore the free space."""
        self._resize(_ROOMY)

    def unmount(self) -> None:
        """Drop the content, even if processes still use it."""
        subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)

    def _resize(self, size: str) -> None:
        _mount("-o", f"remount,size={size}", str(self.folder))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], capture_output=True, check=True)
