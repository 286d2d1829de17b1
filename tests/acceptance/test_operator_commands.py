"""Quotas and approvals on the command line, called in the test process."""

import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import structlog
from typer.testing import CliRunner, Result

from caseworker.cli import cli
from tests.support.processes import run_caseworker
from tests.support.service import ServiceProcess

Command = Callable[..., Result]

ASKING = {
    "steps": [
        {
            "id": "ask",
            "type": "approval",
            "data": {
                "message": "Pay?",
                "changes": {"type": "object", "properties": {"amount": {"type": "integer"}}},
            },
        }
    ],
    "edges": [],
}


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Restore the logging, which the commands configure for this process."""
    root, known = logging.getLogger(), structlog.get_config()
    handlers, level, show = root.handlers[:], root.level, warnings.showwarning
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    warnings.showwarning = show
    structlog.configure(**known)


@pytest.fixture
def caseworker(
    module_database_url: str,
    service: ServiceProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    """Return a function that runs a command on the machine of the service."""
    monkeypatch.chdir(tmp_path)
    places = {"CASEWORKER_URL": service.url, "DATABASE_URL": module_database_url}

    def called(*arguments: str, **env: str) -> Result:
        return CliRunner().invoke(cli, arguments, env={**places, "COLUMNS": "120", **env})

    return called


def table(shown: Result) -> dict[str, list[str]]:
    """Return the rows of a printed table by their first words."""
    assert shown.exit_code == 0, shown.stderr
    rows = [line.split("  ") for line in shown.stdout.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return {row[0]: row[1:] for row in cells if row}


def test_a_quota_is_set_shown_listed_and_removed(caseworker: Command) -> None:
    """A new quota replaces the old one; without a quota the configured default applies."""
    caseworker("quotas", "set", "acme", "--max-running", "3", "--max-queued", "7")
    limits = ("--max-runs-per-minute", "60", "--max-cost-usd-per-day", "4.50", "--model", "big")
    replaced = caseworker("quotas", "set", "acme", *limits)
    shown = caseworker("quotas", "show", "acme", QUOTAS_MAX_RUNNING="9")
    caseworker("quotas", "set", "zebra", "--max-cost-usd-per-month", "0")
    listed = table(caseworker("quotas", "list"))
    as_json = json.loads(caseworker("quotas", "list", "--json").stdout)
    shown_json = json.loads(caseworker("quotas", "show", "acme", "--json").stdout)
    removed = caseworker("quotas", "remove", "acme")
    usual = caseworker("quotas", "show", "acme", QUOTAS_MAX_RUNNING="9")
    again = caseworker("quotas", "remove", "acme")
    caseworker("quotas", "remove", "zebra")

    assert replaced.stdout == shown.stdout
    assert shown.stdout.startswith("Tenant acme has its own quota.\n")
    assert table(shown)["running"] == ["any", "0"]
    assert table(shown)["runs a minute"] == ["60"]
    assert table(shown)["USD today"] == ["4.50", "0", "0"]
    assert listed["acme"] == ["max_runs_per_minute 60, max_cost_usd_per_day 4.50, models big"]
    assert [(each["tenant"], each["max_cost_usd_per_day"]) for each in as_json] == [
        ("acme", 4.5),
        ("zebra", None),
    ]
    assert shown_json["quota"]["max_runs_per_minute"] == 60
    assert shown_json["use"]["running"] == 0
    assert listed["zebra"] == ["max_cost_usd_per_month 0"]
    assert removed.stdout == "Tenant acme now has the configured default quota.\n"
    assert usual.stdout.startswith("Tenant acme has the configured quota.\n")
    assert table(usual)["running"] == ["9", "0"]
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr.startswith("Tenant acme has no quota of its own")


def test_a_quota_that_is_set_holds_for_the_service_at_once(
    caseworker: Command, tmp_path: Path
) -> None:
    """The quota shows used and reserved cost: a run that waits for an approval reserves nothing."""
    caseworker("quotas", "set", "default", "--max-runs-per-minute", "0")
    refused = caseworker("run", "What is 6 * 7?")
    caseworker("quotas", "set", "default", "--max-cost-usd-per-day", "5")
    _, approval_id, *_ = asked(caseworker, "spends", tmp_path, "--max-cost-usd", "2.25")
    while (shown := table(caseworker("quotas", "show", "default")))["running"] != ["any", "0"]:
        pass
    caseworker("quotas", "set", "default", "--max-cost-usd-per-day", "0")
    too_much = caseworker("run", "What is 6 * 7?", "--max-cost-usd", "2.76")
    caseworker("quotas", "set", "default", "--max-cost-usd-per-day", "5")
    caseworker("approve", "spends", approval_id)
    assert end_of(caseworker, "spends")["type"] == "run.completed"
    ended = table(caseworker("quotas", "show", "default"))
    caseworker("quotas", "remove", "default")

    assert (refused.exit_code, too_much.exit_code) == (2, 2)
    assert "Quota exceeded: runs_per_minute" in refused.stderr
    assert "Quota exceeded: cost_usd_today" in too_much.stderr
    assert shown["USD today"] == ["5", "0", "0"]
    assert ended["USD today"][0] == "5"
    assert set(map(float, ended["USD today"][1:])) == {0}


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "acme", "--max-running", "-1"),
        ("set", "acme", "--max-running", "1.5"),
        ("set", "acme", "--max-cost-usd-per-day", "-0.01"),
        ("set", "acme", "--max-cost-usd-per-day", "nan"),
        ("set", "acme", "--max-cost-usd-per-month", "1e13"),
        ("set", "no tenant"),
        ("show", "no tenant"),
    ],
)
def test_what_is_no_quota_is_refused(caseworker: Command, arguments: tuple[str, ...]) -> None:
    """Nothing is stored."""
    refused = caseworker("quotas", *arguments)

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr
    assert caseworker("quotas", "list").stdout == ""


def test_a_database_that_is_away_is_one_line(caseworker: Command) -> None:
    """The error has the same form as for all commands."""
    lost = caseworker("quotas", "list", DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")

    assert (lost.exit_code, lost.stdout) == (2, "")
    assert [line for line in lost.stderr.splitlines() if line.startswith("database.url")]


def test_keys_are_shown_to_programs(caseworker: Command, database_url: str) -> None:
    """Secrets are shown once, when a key is created or replaced."""
    there = {"DATABASE_URL": database_url}
    command = ("keys", "create", "--name", "ci", "--tenant", "json", "--scope", "read")
    made = json.loads(caseworker(*command, "--json", **there).stdout)
    rotated = json.loads(caseworker("keys", "rotate", made["key_id"], "--json", **there).stdout)
    shown = caseworker("keys", "list", "--tenant", "json", "--json", **there).stdout

    found = {key["key_id"]: key for key in json.loads(shown)}
    assert set(found) == {made["key_id"], rotated["key_id"]}
    assert found[made["key_id"]]["rotated_to"] == rotated["key_id"]
    assert found[made["key_id"]]["scopes"] == made["scopes"] == ["read"]
    assert made["key"].startswith(f"cwk_{made['key_id']}")
    assert made["key"] not in shown


def test_keys_are_revoked_by_their_age(caseworker: Command, database_url: str) -> None:
    """Newer keys, excepted ones and those of other tenants stay valid."""
    there = {"DATABASE_URL": database_url}

    def made(name: str, tenant: str = "one") -> dict[str, Any]:
        command = ("keys", "create", "--name", name, "--tenant", tenant, "--json")
        return dict(json.loads(caseworker(*command, **there).stdout))

    def revoked(*arguments: str) -> set[str]:
        done = caseworker("keys", "revoke-all", *arguments, "--json", **there)
        assert done.exit_code == 0, done.stderr
        return {key["name"] for key in json.loads(done.stdout)["keys"]}

    old, kept, other = made("old"), made("kept"), made("other", "two")
    new = made("new")
    one = ("--tenant", "one")

    assert revoked("--before", old["created_at"], *one) == set()
    assert revoked("--before", new["created_at"], *one, "--except", kept["key_id"]) == {"old"}
    assert revoked("--before", "now", *one, "--except", kept["key_id"]) == {"new"}
    assert revoked("--before", "now") == {"kept", "other"}
    assert revoked("--before", "now") == set()
    assert other["tenant"] == "two"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "--before"),
        (("--before", "yesterday"), "--before: must be a timestamp"),
        (("--before", "now", "--except", "absent"), "No key has this ID"),
    ],
)
def test_a_refused_revocation_changes_nothing(
    caseworker: Command, database_url: str, arguments: tuple[str, ...], reason: str
) -> None:
    """A misspelled ID must not revoke the key that the operator excepts."""
    there = {"DATABASE_URL": database_url}
    caseworker("keys", "create", "--name", "kept", **there)
    refused = caseworker("keys", "revoke-all", *arguments, **there)

    assert refused.exit_code == 2
    assert reason in refused.stderr
    [key] = json.loads(caseworker("keys", "list", "--json", **there).stdout)
    assert key["revoked_at"] is None


def test_a_process_shows_what_another_one_has_set(module_database_url: str) -> None:
    """The command is started from a shell."""
    env = {"DATABASE_URL": module_database_url}
    done = run_caseworker("quotas", "set", "shell", "--max-running", "2", env=env)
    with psycopg.connect(module_database_url) as connection:
        stored = connection.execute(
            "SELECT max_running FROM quotas WHERE tenant_id = 'shell'"
        ).fetchall()
    removed = run_caseworker("quotas", "remove", "shell", env=env)

    assert (done.returncode, removed.returncode) == (0, 0), done.stderr + removed.stderr
    assert done.stdout.startswith("Tenant shell has its own quota.")
    assert stored == [(2,)]


def asked(caseworker: Command, run_id: str, folder: Path, *limits: str) -> list[str]:
    """Start a run that asks, and return the words of the line that lists its approval."""
    file = folder / "asking.json"
    file.write_text(json.dumps(ASKING))
    value = ("--input", '{"amount": 5}')
    posted = caseworker(
        "graph", "run", str(file), *value, "--run-id", run_id, "--wait", "0", *limits
    )
    assert posted.exit_code == 1, posted.stderr  # it has not completed
    until = time.monotonic() + 150
    while not (lines := caseworker("approvals", run_id).stdout.splitlines()):
        assert time.monotonic() < until
    [line] = lines
    assert line in caseworker("approvals").stdout.splitlines()
    return line.split(maxsplit=3)


def end_of(caseworker: Command, run_id: str) -> dict[str, Any]:
    """Return the last event of a finished run."""
    followed = caseworker("events", run_id, "--json")
    last: dict[str, Any] = json.loads(followed.stdout.splitlines()[-1])
    return last


def test_an_approval_is_listed_and_given_with_other_arguments(
    caseworker: Command, tmp_path: Path
) -> None:
    """Invalid JSON and arguments that do not fit leave the approval open."""
    run_id, approval_id, subject, arguments = asked(caseworker, "pays", tmp_path)

    no_json = caseworker("approve", "pays", approval_id, "--arguments", "{amount")
    unfit = caseworker("approve", "pays", approval_id, "--arguments", '{"amount": "all"}')
    less = ("--arguments", '{"amount": 3}', "--reason", "less will do")
    approved = caseworker("approve", "pays", approval_id, *less, "--json")
    end = end_of(caseworker, "pays")

    assert (run_id, subject, arguments) == ("pays", "ask", '{"default": {"amount": 5}}')
    assert (no_json.exit_code, unfit.exit_code) == (2, 2)
    assert "--arguments is not valid JSON" in no_json.stderr
    assert "arguments.amount" in unfit.stderr
    decision = json.loads(approved.stdout)["decision"]
    assert (decision["decision"], decision["arguments"]) == ("approved", {"amount": 3})
    assert decision["reason"] == "less will do"
    assert end["type"] == "run.completed"
    assert caseworker("approvals", "pays").stdout == ""


def test_an_approval_is_refused_and_stays_so(caseworker: Command, tmp_path: Path) -> None:
    """Later decisions are rejected, as are unknown runs and approvals."""
    _, approval_id, *_ = asked(caseworker, "refused", tmp_path)

    refused = caseworker("approve", "refused", approval_id, "--refuse", "--reason", "too much")
    end = end_of(caseworker, "refused")
    late = caseworker("approve", "refused", approval_id)
    nothing = caseworker("approve", "refused", "nothing")
    nobody = caseworker("approvals", "nobody")

    assert refused.stdout == "ask of run refused: refused.\n"
    assert end["type"] == "run.failed"
    assert [each.exit_code for each in (late, nothing, nobody)] == [2, 2, 2]
    assert [each.stdout for each in (late, nothing, nobody)] == ["", "", ""]
    assert all(each.stderr for each in (late, nothing, nobody))


def test_the_data_of_a_customer_is_erased_by_metadata(
    caseworker: Command, service: ServiceProcess
) -> None:
    """Runs that wait are cancelled first; data of other customers stays."""
    with httpx.Client(base_url=service.url, trust_env=False) as http:
        for run_id, customer in (("erase-1", "c-7"), ("erase-2", "c-7"), ("erase-3", "c-8")):
            body = {"kind": "graph", "graph": ASKING, "metadata": {"customer": customer}}
            assert http.post("/runs", json={**body, "run_id": run_id}).is_success

        asked = caseworker("erase", "--metadata", "customer=c-7")
        erased = caseworker("erase", "--metadata", "customer=c-7", "--yes", "--json")
        again = caseworker("erase", "--metadata", "customer=c-7", "--yes")
        status = [http.get(f"/runs/erase-{n}").status_code for n in (1, 2, 3)]
        http.delete("/runs/erase-3")

    assert asked.exit_code == 2
    assert "Erase customer=c-7 of the tenant of the key? It cannot be restored." in asked.stderr
    assert json.loads(erased.stdout) == {
        "runs": 2,
        "threads": 0,
        "schedules": 0,
        "complete": True,
    }
    assert "Erased 0 runs, 0 threads, 0 schedules." in again.stdout
    assert "no run, thread or schedule to erase" in again.stderr
    assert status == [404, 404, 200]


def test_a_tenant_is_erased_by_the_operator(
    caseworker: Command, module_database: psycopg.Connection[Any]
) -> None:
    """Its quota and keys are gone with it; the tenant must be named."""
    caseworker("quotas", "set", "gone-corp", "--max-running", "3")
    nothing = caseworker("erase", "--yes")
    refused = caseworker("erase", "--tenant", "no/tenant", "--yes")
    erased = caseworker("erase", "--tenant", "gone-corp", "--yes")

    assert (nothing.exit_code, refused.exit_code, erased.exit_code) == (2, 2, 0)
    assert "--metadata KEY=VALUE, --tenant NAME" in nothing.stderr
    assert "tenant" in refused.stderr
    kept = "SELECT count(*) FROM quotas WHERE tenant_id = 'gone-corp'"
    assert module_database.execute(kept).fetchone() == (0,)
