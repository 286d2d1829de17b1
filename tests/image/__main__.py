"""Builds the image, starts both Compose files, and stops and kills workers with runs in flight.

``python -m tests.image`` needs Docker or Podman with Compose. It exits with 1 and one line if there
is none, or if a check fails; the containers then print their last lines first.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.image import model
from tests.image.engine import CheckError, NoEngineError, Project, find_engine, run

ROOT = Path(__file__).parents[2]
IMAGE = "caseworker-image-check"
"""Name of the image and of the Compose project; no other container is changed."""
PORT, UID = 8080, "10001"
HOME = "/tmp"  # noqa: S108 - the only folder in memory
RUNS = 4
"""Number of runs in flight when their workers are stopped or killed."""
SECONDS = 120
"""Time that containers have for each change of their state."""
MODEL = {
    "MODELS_SMALL_BASE_URL": f"http://model:{model.PORT}/v1",
    "MODELS_SMALL_MODEL": "held",
    "MODELS_SMALL_API_KEY": "held",
    "MODELS_SMALL_STREAM": "false",
    # Calls in flight have time to end, however busy this machine is.
    "SHUTDOWN_GRACE_SECONDS": "30",
}
_STATE = """
import json, os
fields = dict(line.split(':', 1) for line in open('/proc/self/status'))
def writable(folder):
    try:
        open(os.path.join(folder, 'probe'), 'w').close()
    except OSError as error:
        return error.strerror
    return True
folders = {each: writable(each) for each in ('/', '/srv/caseworker', '/etc', '/tmp')}
print(json.dumps({
    'uids': sorted({*fields['Uid'].split()}), 'capabilities': int(fields['CapEff'], 16),
    'no_new_privileges': int(fields['NoNewPrivs']),
    'writable': [each for each in folders if folders[each] is True]}))
"""
_SOURCES = """
import caseworker, hashlib, json, pathlib
folder = pathlib.Path(caseworker.__file__).parent
print(json.dumps({
    str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
    for file in folder.rglob('*.py')}))
"""
_KILL = "import os; os.kill(-1, 9)"


def main() -> None:
    """Make all checks; exit with 1 and the reason if one fails."""
    try:
        engine = find_engine()
        with tempfile.TemporaryDirectory() as folder:
            check_repository(engine, Path(folder))
            check_created_project(engine, Path(folder) / "project")
        run([engine, "rmi", "--force", IMAGE, f"{IMAGE}-project"])
    except (NoEngineError, CheckError, httpx.HTTPError) as error:
        sys.exit(f"image-check: {error}")


def check_repository(engine: str, folder: Path) -> None:
    """Check the image of the repository, and its Compose file with a held model."""
    content = Project(engine, IMAGE, ROOT / "docker-compose.yml").configuration()
    for name, service in content["services"].items():
        if "build" in service:
            service["image"] = IMAGE
            service["environment"] |= MODEL
            if name != "migrate":  # one build for all
                del service["build"]
    content["services"]["model"] = {
        "image": IMAGE,
        "entrypoint": ["python", "-u", "-c", Path(model.__file__).read_text("utf-8")],
        "ports": [f"127.0.0.1::{model.PORT}"],
        "healthcheck": {"disable": True},
    }
    with started(engine, IMAGE, content, folder / "compose.yaml") as project:
        check_containers(project, ["api", "worker"])
        urls = project.addresses("api", PORT)
        check_api(project, urls, ["migrate", "api", "worker"])
        held = HeldModel(project, urls[0])
        check_external_run(held, urls)
        check_sigterm(project, held)
        check_kill(project, held)


def check_created_project(engine: str, folder: Path) -> None:
    """Check the image and the Compose file that `caseworker init` writes, with the stub model."""
    run([sys.executable, "-m", "caseworker", "init", str(folder)])
    dockerfile = folder / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text("utf-8").replace("caseworker:0.2.0", IMAGE), "utf-8")
    (folder / ".env").write_text("MODELS_SMALL_PROVIDER=stub\n", "utf-8")
    name = f"{IMAGE}-project"
    content = Project(engine, name, folder / "compose.yaml").configuration()
    content["services"]["caseworker"]["image"] = name
    with started(engine, name, content, folder / "checked.yaml") as project:
        check_containers(project, ["caseworker"])
        urls = project.addresses("caseworker", PORT)
        check_api(project, urls, ["caseworker"])
        body = {"run_id": "order", "kind": "agent", "agent": {"name": "support"}, "input": "1042"}
        finished = ended(urls[0], submitted(urls[0], body))
        report(f"init: an agent called its tool: {finished['result']['output']}")


@contextmanager
def started(engine: str, name: str, content: dict[str, Any], file: Path) -> Iterator[Project]:
    """Build and start the services of a Compose file, on free ports; remove them at the end."""
    for service in content["services"].values():
        for port in service.get("ports", []):
            if isinstance(port, dict):
                port.pop("published")
    file.write_text(yaml.safe_dump(content), "utf-8")
    project = Project(engine, name, file)
    try:
        project.compose("build")
        project.compose("up", "--detach")
        yield project
    except (CheckError, httpx.HTTPError):
        sys.stderr.write(project.compose("logs", "--tail", "40"))
        raise
    finally:
        project.started("down", "--volumes", "--remove-orphans", "--timeout", "1").wait()


def check_containers(project: Project, services: list[str]) -> None:
    """Check the user, the rights and the health of each container."""
    for each in project.containers(*services):
        expect(each["Config"]["User"] == UID, f"the user of the image is {each['Config']['User']}")
    for service in services:
        for printed in project.python(service, _STATE):
            state = json.loads(printed)
            expect(state["uids"] == [UID], f"{service} has the user IDs {state['uids']}")
            expect(state["capabilities"] == 0, f"{service} has capabilities")
            expect(state["no_new_privileges"] == 1, f"{service} may get privileges")
            expect(state["writable"] == [HOME], f"{service} can write to {state['writable']}")
        for printed in project.python(service, _SOURCES):
            expect(json.loads(printed) == sources(), f"{service} has another source than {ROOT}")
    eventually(
        lambda: all(
            each["State"]["Health"]["Status"] == "healthy" for each in project.containers(*services)
        ),
        "all health checks pass",
    )
    report(f"{', '.join(services)}: user {UID}, this source, only {HOME} is writable, healthy")


def sources() -> dict[str, str]:
    """Return the SHA-256 of each file of the package, the migrations included."""
    folders = {"": ROOT / "app" / "caseworker", "migrations/": ROOT / "migrations"}
    return {
        f"{prefix}{file.relative_to(folder)}": hashlib.sha256(file.read_bytes()).hexdigest()
        for prefix, folder in folders.items()
        for file in folder.rglob("*.py")
    }


def check_api(project: Project, urls: list[str], services: list[str]) -> None:
    """Check a run, readiness, metrics and the log of each replica."""
    for number, url in enumerate(urls):
        ready = httpx.get(f"{url}/readyz")
        expect(ready.status_code == 200, f"/readyz is {ready.status_code}: {ready.text}")
        step = {"id": "sum", "type": "tool", "data": {"tool": "calculator"}}
        step["data"]["args"] = {"expression": "6*7"}  # type: ignore[index]
        graph = {"steps": [step], "edges": []}
        body = {"run_id": f"sum-{number}", "kind": "graph", "graph": graph}
        ended(url, submitted(url, body))
        metrics = httpx.get(f"{url}/metrics")
        expect(metrics.status_code == 200, f"/metrics is {metrics.status_code}: {metrics.text}")
        expect("\ncaseworker_" in metrics.text, "/metrics has no metrics")
    logged = project.compose("logs", "--no-color", "--no-log-prefix", *services).splitlines()
    for line in logged:
        expect('"settings.warning"' not in line and '"level": "error"' not in line, line)
    report(f"{len(urls)} x /readyz, a run, /metrics; no warning about settings")


class HeldModel:
    """The endpoint in the container ``model``, and the runs that call it."""

    def __init__(self, project: Project, api_url: str) -> None:
        """Use the endpoint of a project for runs of one API replica."""
        [self.url] = project.addresses("model", model.PORT)
        self.api_url = api_url

    def submit(self, group: str) -> list[str]:
        """Submit runs with two calls each, and wait until their first calls are in flight."""
        runs = []
        for number in range(RUNS):
            steps = [
                {"id": step, "type": "llm", "data": {"prompt": f"{group} {step} {number}"}}
                for step in ("first", "second")
            ]
            edge = {"source": "first", "target": "second", "data": {"channel": "flow"}}
            body = {"run_id": f"{group}-{number}", "kind": "graph"}
            body["graph"] = {"steps": steps, "edges": [edge]}  # type: ignore[assignment]
            runs.append(submitted(self.api_url, body))
        eventually(lambda: self.calls(group, "first") == [1] * RUNS, "all first calls arrive")
        return runs

    def calls(self, group: str, step: str) -> list[int]:
        """Return how often the call of a step arrived, for each run of a group that made it."""
        prompts = Counter(httpx.get(f"{self.url}/prompts").json())
        return [count for prompt, count in prompts.items() if prompt.startswith(f"{group} {step}")]

    def answer(self, group: str, step: str) -> None:
        """Let the calls of a step return, those in flight and later ones."""
        httpx.post(f"{self.url}/open", content=f"{group} {step}")


def check_external_run(held: HeldModel, urls: list[str]) -> None:
    """Call a model through each replica for one external run, which a worker owns."""
    held.answer("external", "call")
    body = {"kind": "external", "run_id": "external"}
    created = httpx.post(f"{urls[0]}/runs", json=body, timeout=SECONDS)
    expect(created.status_code in (200, 202), created.text)
    headers = {"Authorization": f"Bearer {created.json()['access']['key']}"}
    for number, url in enumerate(urls):
        message = {"role": "user", "content": f"external call {number}"}
        reply = httpx.post(
            f"{url}/gateway/openai/v1/chat/completions",
            json={"model": "small", "messages": [message]},
            headers=headers,
            timeout=SECONDS,
        )
        expect(reply.status_code == 200, f"an external run gets {reply.status_code}: {reply.text}")
    report(f"external run: {len(urls)} replicas forward calls to the worker that owns it")


def check_sigterm(project: Project, held: HeldModel) -> None:
    """Stop all workers with calls in flight: they end, and restarted workers resume the runs."""
    runs = held.submit("stopped")
    stopping = project.started("stop", "worker")
    # The API is not ready once no worker accepts runs any more.
    eventually(lambda: httpx.get(f"{held.api_url}/readyz").status_code == 503, "workers stop")
    held.answer("stopped", "first")
    expect(stopping.wait(SECONDS) == 0, "the workers cannot be stopped")
    codes = [each["State"]["ExitCode"] for each in project.containers("worker")]
    expect(codes == [0, 0], f"stopped workers exit with {codes}")
    statuses = [httpx.get(f"{held.api_url}/runs/{each}").json()["status"] for each in runs]
    expect(statuses == ["queued"] * RUNS, f"runs of stopped workers are {statuses}")
    expect(not held.calls("stopped", "second"), "a stopped worker starts calls")
    held.answer("stopped", "second")
    project.compose("start", "worker")
    attempts = [ended(held.api_url, each)["attempts"] for each in runs]
    calls = held.calls("stopped", "first") + held.calls("stopped", "second")
    expect(calls == [1] * 2 * RUNS, f"calls after SIGTERM: {calls}")
    report(f"SIGTERM: {RUNS} runs resume after a restart, no call is cut; attempts: {attempts}")


def check_kill(project: Project, held: HeldModel) -> None:
    """Kill all workers with calls in flight: the engine restarts them, and they recover."""
    runs = held.submit("killed")
    for each in project.containers("worker"):
        command = [project.engine, "exec", each["Id"], "python", "-c", _KILL]
        subprocess.run(command, capture_output=True, check=False)
    eventually(
        lambda: all(
            each["RestartCount"] > 0 and each["State"]["Running"]
            for each in project.containers("worker")
        ),
        "the engine restarts killed workers",
    )
    held.answer("killed", "first")
    held.answer("killed", "second")
    attempts = [ended(held.api_url, each)["attempts"] for each in runs]
    calls = held.calls("killed", "first"), held.calls("killed", "second")
    expect(calls == ([2] * RUNS, [1] * RUNS), f"calls after kill -9: {calls}")
    report(f"kill -9: {RUNS} runs recover, lost calls are repeated; attempts: {attempts}")


def submitted(url: str, body: dict[str, Any]) -> str:
    """Submit a run and return its ID."""
    answer = httpx.post(f"{url}/runs", json=body, timeout=SECONDS)
    expect(answer.status_code in (200, 202), f"POST /runs is {answer.status_code}: {answer.text}")
    return str(body["run_id"])


def ended(url: str, run_id: str) -> dict[str, Any]:
    """Wait until a run is completed, and return it."""

    def read() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{url}/runs/{run_id}").json()
        return found

    eventually(lambda: bool(read()["finished_at"]), f"the run {run_id} ends")
    found = read()
    expect(found["status"] == "completed", f"the run {run_id} is {found['status']}: {found}")
    return found


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + SECONDS
    while not holds():
        expect(time.monotonic() < end, f"not within {SECONDS} seconds: {what}")
        time.sleep(0.2)


def expect(holds: bool, otherwise: str) -> None:
    """Fail with a message if a condition does not hold.

    Raises:
        CheckError: it does not hold.
    """
    if not holds:
        raise CheckError(otherwise)


def report(line: str) -> None:
    """Print a check that passed."""
    print(f"ok: {line}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
