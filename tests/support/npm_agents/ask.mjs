// Asks a question with the Vercel AI SDK; prints the outcome as one line of JSON.
// Usage: ask.mjs NODE_MODULES API QUESTION [stream], where API is openai, responses or anthropic.
import { createRequire } from "node:module";
const [modules, api, prompt, stream] = process.argv.slice(2);
const require = createRequire(modules + "/");
const { generateText, streamText } = require("ai");
const { OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, ASKED_MODEL } = process.env;
const openai = require("@ai-sdk/openai").createOpenAI({ baseURL: OPENAI_BASE_URL, apiKey: OPENAI_API_KEY });
const anthropic = require("@ai-sdk/anthropic").createAnthropic({
  baseURL: ANTHROPIC_BASE_URL + "/v1",
  apiKey: ANTHROPIC_API_KEY,
});
const model = { openai: openai.chat, responses: openai.responses, anthropic }[api](ASKED_MODEL);

async function answer() {
  if (!stream) return (await generateText({ model, prompt })).text;
  let failed;
  const result = streamText({ model, prompt, onError: ({ error }) => (failed = error) });
  let text = "";
  for await (const part of result.textStream) text += part;
  if (failed) throw failed;
  return text;
}

let outcome;
try {
  outcome = { answer: await answer() };
} catch (error) {
  outcome = { error: `${error.name}: ${error.message ?? JSON.stringify(error)}` };
}
console.log(JSON.stringify(outcome));
