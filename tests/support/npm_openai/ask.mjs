// Uses OpenAI's JavaScript client and the Vercel AI SDK; prints their outcomes as one line of JSON.
// Usage: ask.mjs NODE_MODULES BASE_URL MODEL PROMPT
import { createRequire } from "node:module";
const [modules, baseURL, name, prompt] = process.argv.slice(2);
const require = createRequire(modules + "/");
const { generateText, streamText } = require("ai");
const { OpenAI } = require("openai");
const provider = require("@ai-sdk/openai").createOpenAI({ baseURL, apiKey: "unused" });
const client = new OpenAI({ baseURL, apiKey: "unused" });

async function ofSdk(model) {
  const { text, usage } = await generateText({ model, prompt });
  const streamed = streamText({ model, prompt, onError: ({ error }) => { throw error; } });
  let parts = "";
  for await (const part of streamed.textStream) parts += part;
  return { text, parts, tokens: usage.totalTokens };
}

async function ofClient() {
  const messages = [{ role: "user", content: prompt }];
  const chat = await client.chat.completions.create({ model: name, messages });
  const chunks = client.chat.completions.stream({ model: name, messages });
  const streamed = await chunks.finalContent();
  const first = await client.responses.create({ model: name, input: prompt });
  const events = [];
  for await (const event of await client.responses.create({ model: name, input: prompt, stream: true, background: true }))
    events.push(event);
  const { id } = events.at(-1).response;
  const resumed = [];
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: 2 })) resumed.push(event.sequence_number);
  const cancelled = await client.responses.cancel(id);
  return {
    chat: chat.choices[0].message.content,
    streamed,
    response: first.output_text,
    types: [...new Set(events.map((event) => event.type))],
    isResumed: resumed[0] === 3 && resumed.length === events.length - 3,
    cancelled: cancelled.status,
  };
}

const outcome = {
  client: await ofClient(),
  chat: await ofSdk(provider.chat(name)),
  responses: await ofSdk(provider.responses(name)),
};
console.log(JSON.stringify(outcome));
