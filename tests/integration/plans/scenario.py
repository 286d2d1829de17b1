"""Requests to every route, and work for every background loop, of two processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from caseworker.features.mcp_credentials.postgres import PostgresMcpCredentials
from caseworker.main.process import Process
from tests.integration.plans.probe import Probe
from tests.integration.plans.upkeep import Upkeep
from tests.integration.plans.world import (
    LATER,
    SAY,
    SUM,
    Json,
    graph,
    opened,
    settings_of,
    tool,
)
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.stores import eventually, open_oracle
from tests.support.tenants import OPERATOR_KEY
from tests.support.webhook_receiver import FAILED, OK, receiving


@dataclass(slots=True)
class Scenario(Upkeep):
    """The requests and the work."""

    async def of_tenant(self, tenant: str, *, erases: bool = True) -> None:
        """Send the requests of one tenant."""
        for part in (
            self._definitions,
            self._runs,
            self._stops,
            self._approvals,
            self._threads,
            self._external,
            self._schedules,
            self._webhooks,
            self._limits,
            self._keys,
            self._reports,
            self.lost,
            *((self._erasures, self.expire) if erases else ()),
        ):
            await part(tenant)

    async def _definitions(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        agent = {"name": "clerk", "prompt": {"system": "Help."}, "model": {"name": "fake"}}
        for name in ("sums", "says"):
            for each in (SUM, SAY):
                await ask("POST", "/graphs", {"name": name, "graph": each})
        for name in ("clerk", "helper"):
            for system in ("Help.", "Help more."):
                body = {"agent": {**agent, "name": name, "prompt": {"system": system}}}
                await ask("POST", "/agents", body)
        nested = graph({"id": "n", "type": "subgraph", "data": {"graph": {"name": "sums"}}})
        await ask("POST", "/graphs", {"name": "nests", "graph": nested})
        await ask("POST", "/graphs/validate", {"graph": nested})
        await self.run(tenant, {"kind": "graph", "graph": {"name": "nests"}})
        await self.run(tenant, {"kind": "agent", "agent": {"name": "clerk"}, "input": "Hello?"})
        for kind, name in (("graphs", "sums"), ("agents", "clerk")):
            await self.both_pages(tenant, f"/{kind}")
            await ask("GET", f"/{kind}/{name}")
            await self.both_pages(tenant, f"/{kind}/{name}/versions")
            await ask("GET", f"/{kind}/{name}/versions/1")
            await ask("DELETE", f"/{kind}/{name}/versions/1")
        await ask("DELETE", "/graphs/sums", status=409)
        await ask("DELETE", "/graphs/says")
        await ask("DELETE", "/agents/helper")

    async def _runs(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        plan = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
        await self.provider.script("What is 6 * 7?", [Step(plan=plan)], repeat_last=True)
        for number in range(2):
            meta = {"source": "mail", "ticket": str(number)}
            await self.run(tenant, {"input": "What is 6 * 7?", "metadata": meta})
        body: Json = {
            "kind": "graph",
            "graph": SUM,
            "run_id": "keyed",
            "metadata": {"source": "web"},
        }
        for _ in range(2):
            await ask("POST", "/runs", body, idempotency_key="key")
            await self.ended(tenant, "keyed")
        chart = graph(tool("draw", "draw", texts=["a"]))
        await self.run(tenant, {"kind": "graph", "graph": chart, "run_id": "drawn"})
        (name,) = [
            each["name"] for each in (await ask("GET", "/runs/drawn/artifacts"))["artifacts"]
        ]
        for method in ("HEAD", "GET"):
            await ask(method, f"/runs/drawn/artifacts/{name}")
        for path in (
            "",
            "/trace",
            "/trace?format=explain",
            "/trace?format=otlp",
            "/events?limit=3",
            "/events?after=2",
            "/approvals",
        ):
            await ask("GET", f"/runs/keyed{path}", accept="application/json")
        node = next(iter((await ask("GET", "/runs/keyed/trace"))["snapshot"]["nodes"]))
        await ask("GET", f"/runs/keyed/calls/{node}")
        await ask(
            "POST", "/runs", {"from": {"run_id": "drawn"}, "run_id": "forked"}, prefer="wait=60"
        )
        # the process that executes no runs: queued, with a key, with a start time
        for more in (
            {},
            {"run_id": "queued-by-name"},
            {"concurrency_key": "one", "concurrency_limit": 1},
            {"priority": 5},
            {"deadline": LATER},
        ):
            await ask("POST", "/runs", {"kind": "graph", "graph": SUM, **more}, on=self.api)
        future = {"start_at": LATER, "run_id": "future"}
        for _ in range(2):
            body = {"kind": "graph", "graph": SUM, **future}
            await ask("POST", "/runs", body, on=self.api, idempotency_key="future")
        await self.hanging(tenant, "watched")
        watching = asyncio.create_task(
            self.ask(tenant, "GET", "/runs/watched/events", on=self.api, accept="text/event-stream")
        )
        await asyncio.sleep(0.3)
        await self.provider.release()
        await watching
        await self.ended(tenant, "watched")
        for query in (
            *("", "status=completed", "kind=graph", "agent=clerk", "metadata.source=mail"),
            *("status=completed&kind=graph", "status=completed&agent=clerk"),
            *("metadata.source=mail&kind=case", "metadata.source=mail&status=completed"),
        ):
            await self.listed(tenant, query)
        for query in ("status=failed&agent=clerk", "metadata.source=mail&kind=graph"):
            await ask("GET", f"/runs?limit=1&{query}")  # few or no matches
        await ask(
            "GET", "/runs?created_after=2020-01-01T00:00:00Z&created_before=2100-01-01T00:00:00Z"
        )

    async def _stops(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        await ask("DELETE", "/runs/early?reason=changed")
        await ask("POST", "/runs", {"kind": "graph", "graph": SUM, "run_id": "early"})
        await ask("DELETE", "/runs/never")
        await ask("POST", "/runs/future/cancel")
        await self.hanging(tenant, "stopped")
        await ask("DELETE", "/runs/stopped", on=self.api)
        await self.ended(tenant, "stopped")
        await self.hanging(tenant, "stopped-2", metadata={"batch": "7"})
        await ask("POST", "/runs/cancel", {"metadata": {"batch": "7"}})
        await self.ended(tenant, "stopped-2")
        for more in (
            {"agent": "clerk"},
            {"created_before": "2020-01-01T00:00:00Z"},
            {"status": "queued", "kind": "case"},
        ):
            await ask("POST", "/runs/cancel", more)
        await ask("DELETE", "/runs/stopped/record")

    async def _approvals(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        step = {"id": "ask", "type": "approval", "data": {"message": "May I?"}}
        quick = {"id": "ask", "type": "approval", "data": {"message": "?", "timeout_seconds": 0.5}}
        for name, one in (("asks", step), ("asks-2", step), ("asks-late", quick)):
            await ask("POST", "/runs", {"kind": "graph", "graph": graph(one), "run_id": name})

        async def asked(name: str) -> Any:
            return (await ask("GET", f"/runs/{name}/approvals"))["approvals"]

        for name in ("asks", "asks-2"):
            await eventually(lambda name=name: asked(name))  # type: ignore[misc]
        await self.both_pages(tenant, "/approvals")
        for name, decision in (("asks", "approve"), ("asks-2", "refuse")):
            (one,) = await asked(name)
            path = f"/runs/{name}/approvals/{one['approval_id']}"
            await ask("POST", path, {"decision": decision}, on=self.api)
        kept = {"kind": "graph", "graph": graph(step), "run_id": "asks-kept"}
        await ask("POST", "/runs", kept)
        for name in ("asks", "asks-2", "asks-late"):
            await self.ended(tenant, name)
        # decided while the run works on another step, and stopped while it waits
        await self.provider.script(f"Hang beside {tenant}", [Step(hang=True)])
        beside = [{**self.llm(f"Hang beside {tenant}")["steps"][0], "id": "beside"}]
        for name, others in (("asks-beside", beside), ("asks-stopped", [])):
            body = {"kind": "graph", "graph": graph(step, *others), "run_id": name}
            await ask("POST", "/runs", body)
            await eventually(lambda name=name: asked(name))  # type: ignore[misc]
        await self.provider.wait_for_arrivals(1, f"Hang beside {tenant}")
        (one,) = await asked("asks-beside")
        path = f"/runs/asks-beside/approvals/{one['approval_id']}"
        await ask("POST", path, {"decision": "approve"})
        await self.provider.release()
        await self.ended(tenant, "asks-beside")

        async def waits() -> bool:
            return bool((await ask("GET", "/runs/asks-stopped"))["status"] == "waiting")

        await eventually(waits)
        await ask("GET", "/runs/asks-stopped/calls")
        await self._client_tools(tenant)
        await ask("DELETE", "/runs/asks-stopped")
        await self.ended(tenant, "asks-stopped")

    async def _client_tools(self, tenant: str) -> None:
        """Let a client answer a call, and ask how many of its runs wait."""
        ask, marker = partial(self.ask, tenant), f"Look up for {tenant}"
        called = {"id": "c1", "name": "look_up", "arguments": "{}"}
        await self.provider.script(marker, [Step(tool_calls=[called]), Step(text="Done.")])
        tool = {"type": "function", "function": {"name": "look_up"}}
        chat = {"model": "clerk", "messages": [{"role": "user", "content": marker}]}
        reply = await ask("POST", "/v1/chat/completions", {**chat, "tools": [tool]})
        run_id = reply["id"].removeprefix("chatcmpl-")
        (call,) = (await ask("GET", f"/runs/{run_id}"))["required_action"]["calls"]
        await ask("POST", f"/runs/{run_id}/calls/{call['call_id']}/result", {"output": 1})
        await self.ended(tenant, run_id)

    async def _threads(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        agent = {
            "agent": {"name": "helper", "prompt": {"system": "Help."}, "model": {"name": "fake"}}
        }
        meta = {"metadata": {"source": "chat"}}
        await ask("POST", "/threads", {"thread_id": "talk", **agent, **meta})
        await ask("POST", "/threads", {"thread_id": "talk", **agent, **meta})
        await ask("POST", "/threads", {"thread_id": "other", "graph": SAY})
        ids = []
        for number in range(3):
            sent = await ask("POST", "/threads/talk/messages", {"content": f"Hello {number}"})
            await self.ended(tenant, sent["run"]["run_id"])
            ids.append(sent["user"]["message_id"])
        path = "/threads/talk/messages"
        shown = await ask("GET", path)
        answer = next(each for each in shown["messages"] if each["role"] == "assistant")
        for where, body in (
            (f"{ids[0]}/edit", {"content": "Hi"}),
            (f"{answer['message_id']}/retry", {}),
        ):
            sent = await ask("POST", f"{path}/{where}", body)
            await self.ended(tenant, sent["run"]["run_id"])
        await self.provider.script("Wait here", [Step(text="One two", hang=True)])
        sent = await ask("POST", path, {"content": "Wait here"})
        await self.provider.wait_for_arrivals(1, "Wait here")
        await ask("POST", "/threads/talk/cancel")
        await self.ended(tenant, sent["run"]["run_id"])
        await self.provider.reset()
        await self.provider.script("Cut here", [Step(text="One", finish_reason="length")])
        sent = await ask("POST", path, {"content": "Cut here"})
        await self.ended(tenant, sent["run"]["run_id"])
        sent = await ask("POST", f"{path}/{sent['assistant']['message_id']}/continue")
        await self.ended(tenant, sent["run"]["run_id"])
        for query in ("", "?tree=true", f"?leaf={ids[1]}"):
            await ask("GET", f"{path}{query}")
        await ask("GET", "/threads/talk")
        if (await self.worker.ask(tenant, "GET", "/threads/long")).is_success:
            await ask("GET", "/threads/long/messages")
            sent = await ask("POST", "/threads/long/messages", {"content": "And now?"})
            await self.ended(tenant, sent["run"]["run_id"])
        await self.both_pages(tenant, "/threads")
        await self.listed(tenant, "thread_id=talk")
        await ask("DELETE", "/threads/other")
        again = {"content": "Again", "run_id": "answered"}
        await ask("POST", path, again)
        await self.ended(tenant, "answered")
        await ask("DELETE", "/runs/answered/record")
        await ask("POST", path, again)
        await self.ended(tenant, "answered")
        await self.of_previous_release(tenant)

    async def _external(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        access = (await ask("POST", "/runs", {"kind": "external", "run_id": "ext"}))["access"]
        bearer = {"Authorization": f"Bearer {access['key']}"}
        chat = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}]}
        for process in (self.worker, self.api):
            sent = await process.client.post(
                "/gateway/openai/v1/chat/completions", json=chat, headers=bearer
            )
            assert sent.status_code in (200, 503), sent.text
        await self.worker.client.get("/gateway/openai/v1/models", headers=bearer)
        child = await self.worker.client.post(
            "/runs", json={"kind": "graph", "graph": SUM}, headers=bearer
        )
        assert child.status_code < 500, child.text
        response = {"model": "fake", "input": "Hello"}
        first = await self.worker.client.post(
            "/gateway/openai/v1/responses", json=response, headers=bearer
        )
        if first.is_success:
            await self.worker.client.post(
                "/gateway/openai/v1/responses",
                json={**response, "previous_response_id": first.json()["id"]},
                headers=bearer,
            )
        await ask("POST", "/runs/ext/heartbeat")
        await ask("GET", "/runs/ext", on=self.api)
        await ask("POST", "/runs/ext/finish", {"output": 42})
        await self.ended(tenant, "ext")
        await ask("POST", "/runs", {"kind": "external", "run_id": "ext-2"})
        await ask("DELETE", "/runs/ext-2")

    async def _schedules(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        run = {"kind": "graph", "graph": SUM}
        prompt = f"Hang scheduled {tenant}"
        await self.provider.script(prompt, [Step(hang=True)], repeat_last=True)
        hangs = {"kind": "graph", "graph": self.llm(prompt)}
        for name, overlap, starts in (
            ("hourly", "allow", run),
            ("kept", "allow", run),
            ("skips", "skip", hangs),
            ("replaces", "cancel_running", hangs),
        ):
            body = {"cron": "* * * * *", "overlap": overlap, "run": starts}
            await ask("PUT", f"/schedules/{name}", body)
        await ask("PUT", "/schedules/hourly", {"cron": "5 * * * *", "run": run})
        await self.both_pages(tenant, "/schedules")
        await ask("GET", "/schedules/hourly")
        for action in ("run", "pause", "resume"):
            await ask("POST", f"/schedules/hourly/{action}")
        due = (
            "UPDATE schedules SET next_at = date_trunc('minute', now())"
            " WHERE tenant_id = %s AND cron LIKE '* %%'"
        )
        await self.oracle.rows(due, tenant)

        async def fired() -> bool:
            found = (await ask("GET", "/schedules?limit=100"))["schedules"]
            return all(each["last_at"] is not None for each in found if each["cron"][0] == "*")

        await eventually(fired)
        await self.provider.wait_for_arrivals(2, prompt)
        first = (await ask("GET", "/schedules/replaces"))["last_run_id"]
        await self.oracle.rows(due, tenant)
        await self.ended(tenant, first)
        for name in ("skips", "replaces"):
            last = (await ask("GET", f"/schedules/{name}"))["last_run_id"]
            await ask("DELETE", f"/schedules/{name}")
            await ask("DELETE", f"/runs/{last}")
        await ask("DELETE", "/schedules/hourly")
        await ask("PUT", "/schedules/kept", {"cron": "0 0 1 1 *", "run": run})
        await self.unreadable_schedule(tenant)

    async def _webhooks(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        for _ in range(2):
            await ask("POST", "/webhooks/secret")
        await ask("GET", "/webhooks/secret")
        await ask("POST", "/webhooks/test", {"url": self.receiver.url})
        body = {"kind": "graph", "graph": SUM, "webhook": {"url": self.receiver.url}}
        hooked = [await self.run(tenant, body)]
        self.receiver.answer(FAILED)
        hooked += [await self.run(tenant, body), await self.run(tenant, body)]

        async def dead() -> bool:
            found = await ask("GET", "/webhooks/deliveries")
            return all(each["status"] != "pending" for each in found["deliveries"])

        await eventually(dead)
        self.receiver.answer(OK)
        for query in ("", "?status=dead", f"?run_id={hooked[0]}"):
            await ask("GET", f"/webhooks/deliveries{query}")
        await self.both_pages(tenant, "/webhooks/deliveries")
        await self.both_pages(tenant, "/webhooks/deliveries?status=dead")
        one = (await ask("GET", "/webhooks/deliveries?status=dead"))["deliveries"][0]["delivery_id"]
        await ask("GET", f"/webhooks/deliveries/{one}")
        await ask("POST", f"/webhooks/deliveries/{one}/redeliver")
        await eventually(dead)
        # a delivery whose job was lost
        await self.oracle.rows(
            """UPDATE webhook_deliveries SET status = 'pending', due_at = now() - interval '1 h'
            WHERE tenant_id = %s AND delivery_id = %s""",
            tenant,
            one,
        )
        await eventually(dead)

    async def _limits(self, tenant: str) -> None:
        operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
        quota = {
            "max_running": 50,
            "max_queued": 1_000_000,
            "max_runs_per_minute": 6000,
            "max_cost_usd_per_day": 1000,
            "max_cost_usd_per_month": 9000,
            "max_stored_bytes": 10**12,
        }
        path = f"/quotas/{tenant}"
        made = await self.worker.client.put(path, json=quota, headers=operator)
        assert made.is_success, made.text
        for each in (path, "/quotas"):
            assert (await self.worker.client.get(each, headers=operator)).is_success
        await self.ask(tenant, "GET", path)
        await self.run(tenant, {"kind": "graph", "graph": self.llm("With a quota?")})
        for on in (self.worker, self.api):
            await self.ask(
                tenant, "POST", "/runs", {"kind": "graph", "graph": SUM}, on=on, prefer="wait=20"
            )
        await self.ask(tenant, "POST", "/graphs", {"name": "within", "graph": SUM})
        for _ in range(2):
            again = {
                "kind": "graph",
                "graph": SUM,
                "run_id": "within",
                "start_at": LATER,
            }
            await self.ask(tenant, "POST", "/runs", again)
        none = {**quota, "max_runs_per_minute": 0}
        assert (await self.worker.client.put(path, json=none, headers=operator)).is_success
        await self.ask(tenant, "POST", "/threads/talk/messages", {"content": "Refused"}, status=429)
        assert (await self.worker.client.delete(path, headers=operator)).is_success
        credentials = self.executing.services[PostgresMcpCredentials]
        body = {"headers": {"authorization": "secret"}}
        await self.ask(tenant, "PUT", "/mcp-credentials/crm", body)
        await credentials.headers_of(tenant, "crm")
        await self.ask(tenant, "GET", "/mcp-credentials")
        await self.ask(tenant, "DELETE", "/mcp-credentials/crm")

    async def _keys(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        made = await ask("POST", "/keys", {"name": "more", "scopes": ["read"]})
        await ask("GET", "/keys")
        await ask("GET", "/whoami")
        rotated = await ask("POST", f"/keys/{made['key_id']}/rotate", {"overlap_seconds": 0})
        await ask("DELETE", f"/keys/{rotated['key_id']}")
        body: Json = {"kind": "agent", "budget": None, "budget_per_day": {"max_llm_calls": 2}}
        body["webhook"] = {"url": self.receiver.url}
        standing = await ask("POST", "/keys", body)
        bearer = {"Authorization": f"Bearer {standing['key']}"}
        chat = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}
        for path in ("chat/completions", "responses", "embeddings"):
            shown = await self.worker.client.post(
                f"/gateway/openai/v1/{path}/reserve",
                json=chat if "chat" in path else {"model": "small", "input": "Hello"},
                headers=bearer,
            )
            assert shown.status_code == 200, shown.text
        refused = await self.worker.client.post(
            "/gateway/anthropic/v1/messages/reserve", json=chat, headers=bearer
        )
        assert refused.status_code == 400, refused.text
        for session in ({}, {"x-caseworker-run": "named"}):
            answer = await self.worker.client.post(
                "/gateway/openai/v1/chat/completions", json=chat, headers={**bearer, **session}
            )
            assert answer.status_code == 200, answer.text
        usage = await self.worker.client.get("/gateway/usage", headers=bearer)
        assert usage.status_code == 200, usage.text
        models = await self.worker.client.get("/gateway/openai/v1/models", headers=bearer)
        assert models.status_code == 200, models.text
        run = (await ask("GET", "/runs?agent=agent"))["runs"][0]
        read = await self.worker.client.get(f"/runs/{run['run_id']}", headers=bearer)
        assert read.status_code == 200, read.text
        await ask("GET", "/spend?group_by=key")
        refused = await self.worker.client.post(
            "/gateway/openai/v1/chat/completions", json={**chat, "model": "?"}, headers=bearer
        )
        assert refused.status_code == 404, refused.text
        await ask("GET", f"/keys/{standing['key_id']}")
        await self.both_pages(tenant, f"/keys/{standing['key_id']}/sessions")

        async def refusal_counted() -> bool:
            key = await ask("GET", f"/keys/{standing['key_id']}")
            return bool(key["day"]["refused"])

        await eventually(refusal_counted)
        await ask("DELETE", f"/keys/{standing['key_id']}")

    async def _reports(self, tenant: str) -> None:
        ask = partial(self.ask, tenant)
        for period in ("hour", "day"):
            await ask("GET", f"/statistics?period={period}")
        for group in ("tenant", "model", "agent", "metadata.source"):
            for range_ in ("", "&period=day&after=2020-01-01T00:00:00Z"):
                await ask("GET", f"/spend?group_by={group}{range_}")
        for query in ("", "&action=key.created", "&after=2020-01-01T00:00:00Z"):
            await self.both_pages(tenant, f"/audit?{query.removeprefix('&')}")
        for path in ("/tools", "/models", "/node-types", "/healthz", "/readyz"):
            await ask("GET", path)
            await ask("GET", path, on=self.api)
        for process in (self.worker, self.api):
            bearer = {"Authorization": f"Bearer {OPERATOR_KEY}"}
            assert (await process.client.get("/metrics", headers=bearer)).is_success

    async def _erasures(self, tenant: str) -> None:
        await self.ask(tenant, "POST", "/erasures", {"metadata": {"source": "chat"}})
        await self.ask(tenant, "POST", "/erasures", {"metadata": {"source": "web"}})


@asynccontextmanager
async def scenario(url: str, provider: FakeProvider) -> AsyncIterator[Scenario]:
    """Open both processes on a database."""
    requests: set[tuple[str, str]] = set()
    executing = Process(settings_of(provider, sweeps=True), url, executes=True)
    accepting = Process(settings_of(provider, sweeps=False), url, executes=False)
    async with (
        receiving() as receiver,
        open_oracle(url) as oracle,
        opened(executing, requests) as worker,
        opened(accepting, requests) as api,
    ):
        api.keys = worker.keys
        yield Scenario(url, worker, api, executing, accepting, provider, receiver, oracle, requests)


async def play(told: Scenario, probe: Probe, *tenants: str) -> None:
    """Explain the statements of the service for some tenants and for the operator."""
    for tenant in tenants:
        probe.phase = tenant
        await told.of_tenant(tenant)
    probe.phase = "operator"
    await told.of_operator()
