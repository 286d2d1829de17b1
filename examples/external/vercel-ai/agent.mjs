// An agent with one tool, written with the Vercel AI SDK.
import { createOpenAI } from "@ai-sdk/openai";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI();
const rain = tool({
  description: "Return the rain of the last hour in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    console.log("tool: rain in", city);
    return "12 mm";
  },
});

const answer = streamText({
  model: openai.chat("small"),
  tools: { rain },
  stopWhen: stepCountIs(10),
  prompt: "Report on the rain in Bergen.",
  onError() {}, // errors are parts of the stream
});
for await (const part of answer.fullStream) {
  if (part.type === "error") throw part.error;
  if (part.type === "text-delta") process.stdout.write(part.text);
}
console.log();
