// What a caller writes with the types that openapi-typescript generates, and openapi-fetch.
// A test generates schema.d.ts, checks this program with tsc and executes it against a service.

import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.d.ts";

type EventView = components["schemas"]["EventView"];
type GraphRunBody = components["schemas"]["GraphRunBody"];

const [url = "", key = ""] = process.argv.slice(2);
const client = createClient<paths, "application/json" | "application/problem+json">({
  baseUrl: url,
  headers: { Authorization: `Bearer ${key}` },
});

async function isAnswered(): Promise<void> {
  const { data: run } = await client.POST("/runs", {
    params: { header: { Prefer: "wait=20" } },
    body: { input: "What is 17% of 2,340?", budget: { max_tool_calls: 3 } },
  });
  assert(run?.kind === "case");
  assert.equal(run.result?.answer, "397.8");
  assert.equal(run.result.evidence[0]?.tool, "calculator");
  assert(run.result.counters.tokens.total.input > 0);
  assert.equal(run.usage?.tool_calls, 1);
  assert.equal(run.stop, null);
}

async function isRefused(): Promise<void> {
  const { error, response } = await client.POST("/runs", { body: { input: " " } });
  assert.equal(response.status, 422);
  assert.equal(error?.type, "urn:caseworker:problem:invalid-request");
  assert.equal(error.errors?.[0]?.field, "input");
}

const hangingGraph: GraphRunBody = {
  kind: "graph",
  graph: {
    steps: [
      { id: "quick", type: "tool", data: { tool: "respond", args: { answer: "It is ${default}" } } },
      { id: "slow", type: "llm", data: { prompt: "A slow question about ${default}" } },
    ],
    edges: [{ source: "quick", target: "slow", data: { channel: "flow" } }],
  },
  input: { any: ["JSON", 1, null] },
  budget: { max_steps: 10 },
};

async function isFollowedAndCancelled(): Promise<void> {
  const { data: accepted } = await client.POST("/runs", { body: hangingGraph });
  assert(accepted?.kind === "graph");
  const path = { run_id: accepted.run_id };

  const seen: EventView[] = [];
  for await (const event of eventsOf(accepted.run_id)) {
    seen.push(event);
    if (event.type === "step.started" && event.step_id === "slow") {
      const { data: receipt } = await client.DELETE("/runs/{run_id}", {
        params: { path },
        body: { reason: "It takes too long." },
      });
      assert.equal(receipt?.already_finished, false);
      assert.equal(receipt.reason, "It takes too long.");
    }
  }
  assert.deepEqual(seen.map((event) => event.seq), seen.map((_, index) => index + 1));
  assert.equal(seen.at(-1)?.type, "run.cancelled");

  const { data: run } = await client.GET("/runs/{run_id}", { params: { path } });
  assert(run?.kind === "graph");
  assert.equal(run.status, "cancelled");
  assert.equal(run.stop?.kind, "cancelled");
  assert.equal(run.result?.steps["quick"]?.status, "completed");
  assert.notEqual(run.result.outputs["quick"]?.["default"], undefined);

  const { data: page } = await client.GET("/runs/{run_id}/events", {
    params: { path },
    headers: { Accept: "application/json" },
  });
  assert.equal(page?.events.length, seen.length);

  const { data: trace } = await client.GET("/runs/{run_id}/trace", { params: { path } });
  assert(trace);
  const root = trace.snapshot.nodes[trace.snapshot.root_id ?? ""];
  assert.equal(root?.parent_id, null);
  assert.equal(root.kind, "system");

  const { data: again } = await client.POST("/runs/{run_id}/cancel", { params: { path } });
  assert.equal(again?.already_finished, true);
}

async function* eventsOf(runId: string): AsyncGenerator<EventView> {
  const { data } = await client.GET("/runs/{run_id}/events", {
    params: { path: { run_id: runId } },
    headers: { Accept: "text/event-stream" },
    parseAs: "stream",
  });
  assert(data);
  let rest = "";
  for await (const piece of data.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6)) as EventView;
    }
  }
}

await isAnswered();
await isRefused();
await isFollowedAndCancelled();
