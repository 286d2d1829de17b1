"""The service as the unprivileged user of the image, with a read-only root file system."""

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.service import ServiceProcess

# Namespaces as in a container: the folder and the root are read-only, the home is in memory.
MOUNTS = """
mount --make-rprivate /
mount --bind "$PWD" "$PWD"
mount -o remount,bind,ro "$PWD"
mount -o remount,bind,ro /
mount -t tmpfs home "$HOME"
cd "$PWD"
exec unshare --user --map-user=10001 --map-group=10001 -- "$@"
"""
CONTAINER = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-euc", MOUNTS, "sh"]
TOOL = """
import os
from pathlib import Path

from caseworker import tool


@tool
def where() -> dict[str, object]:
    \"\"\"Report the user, and the folders that it can write to.\"\"\"
    writable = []
    for folder in (Path.home(), Path.cwd(), Path("/"), Path("/etc"), Path("/var/tmp")):
        try:
            (folder / "probe").touch()
        except OSError:
            continue
        writable.append(str(folder))
    return {"user": os.getuid(), "writable": writable}
"""


def has_namespaces() -> bool:
    """Return whether this machine lets the test make user namespaces, as Linux does by default."""
    if (unshare := shutil.which("unshare")) is None:
        return False
    tried = [unshare, "--user", "--map-root-user", "--mount", "true"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not has_namespaces(), reason="user namespaces are not available")
async def test_the_service_runs_without_privileges_and_writes_to_its_home_alone(
    tmp_path: Path, database_url: str
) -> None:
    """It starts, executes a run and shuts down on SIGTERM, like in the image."""
    (tmp_path / "places.py").write_text(TOOL)
    (tmp_path / "caseworker.yaml").write_text("tools: {plugins: ['places:where']}\n")
    step = {"id": "where", "type": "tool", "data": {"tool": "where", "args": {}}}
    with TemporaryDirectory(prefix="home-") as home:  # a short path, because of its Unix socket
        settings = {"HOME": home, "TMPDIR": home}
        async with (
            # By TCP, because only the owner of the server may use its socket.
            FaultProxy(upstream_of(database_url)) as proxy,
            ServiceProcess(
                proxied(database_url, proxy), settings=settings, prefix=CONTAINER, cwd=tmp_path
            ) as service,
            service.client() as client,
        ):
            run = await client.run_graph({"steps": [step], "edges": []}, wait_seconds=120)
            code = await service.child.terminate()

    assert run["status"] == "completed", run
    [found] = run["result"]["outputs"]["where"].values()
    assert found == {"user": 10001, "writable": [home]}
    assert code == 0
