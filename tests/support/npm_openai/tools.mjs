// Lets OpenAI's JavaScript client and the Vercel AI SDK execute a tool; prints their outcomes as one line of JSON.
// Usage: tools.mjs NODE_MODULES BASE_URL MODEL PROMPT
import { createRequire } from "node:module";
const [modules, baseURL, name, prompt] = process.argv.slice(2);
const require = createRequire(modules + "/");
const { generateText, jsonSchema, stepCountIs, streamText, tool } = require("ai");
const { OpenAI } = require("openai");
const provider = require("@ai-sdk/openai").createOpenAI({ baseURL, apiKey: "unused" });
const client = new OpenAI({ baseURL, apiKey: "unused" });

const parameters = { type: "object", properties: { order: { type: "integer" } }, required: ["order"] };
const description = "Looks up an order.";
const orders = [];
function lookUp({ order }) {
  orders.push(order);
  return { state: `order ${order} was sent` };
}

async function ofClient(stream) {
  const fn = { name: "look_up", description, parameters, parse: JSON.parse, function: (args) => JSON.stringify(lookUp(args)) };
  const runner = client.chat.completions.runTools({ model: name, stream, messages: [{ role: "user", content: prompt }], tools: [{ type: "function", function: fn }] });
  return await runner.finalContent();
}

const tools = { look_up: tool({ description, inputSchema: jsonSchema(parameters), execute: async (args) => lookUp(args) }) };
async function ofSdk() {
  const model = provider.chat(name), stopWhen = stepCountIs(5);
  const { text, steps } = await generateText({ model, prompt, tools, stopWhen });
  const streamed = streamText({ model, prompt, tools, stopWhen, onError: ({ error }) => { throw error; } });
  let parts = "";
  for await (const part of streamed.textStream) parts += part;
  return { text, steps: steps.length, parts };
}

const outcome = { client: [await ofClient(false), await ofClient(true)], sdk: await ofSdk() };
console.log(JSON.stringify({ ...outcome, orders }));
