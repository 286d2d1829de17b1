"""The machine and the versions behind a figure."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

import psutil


class Machine(TypedDict):
    """The data needed to compare figures of different machines."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    caseworker: str
    load_1m: float
    """The load average of the last minute: above ``cores``, the figures are noisy."""


def this_machine() -> Machine:
    """Describe the machine in its current state."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "caseworker": version("caseworker"),
        "load_1m": round(os.getloadavg()[0], 1),
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
