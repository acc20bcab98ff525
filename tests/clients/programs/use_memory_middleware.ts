// The AI SDK with turnlog's memory around a model of another server.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool, wrapLanguageModel } from "ai";
import { z } from "zod";
import { connect } from "./index.ts";
import { turnlogMemory } from "./memory-middleware.ts";

const turnlog = connect({ baseUrl: process.env.TURNLOG_URL, key: process.env.TURNLOG_KEY ?? "" });
const provider = createOpenAI({ baseURL: process.env.MODEL_URL, apiKey: "k" });
const model = wrapLanguageModel({ model: provider.chat("m"), middleware: turnlogMemory(turnlog, "walks") });
const first = await generateText({ model, prompt: "My dog is called Sesame.", maxRetries: 0 });
const pieces = [];
for await (const piece of streamText({ model, prompt: "What is my dog called?", maxRetries: 0 }).textStream) pieces.push(piece);
const weather = tool({ inputSchema: z.object({}), execute: async () => "rain" });
const called = await generateText({
  model,
  prompt: "What is the weather?",
  tools: { weather },
  stopWhen: stepCountIs(2),
  maxRetries: 0,
});
// An answer whose reader leaves after its first words, and one whose model fails.
const said = (text: string) => ({ prompt: [{ role: "user" as const, content: [{ type: "text" as const, text }] }] });
const reader = (await model.doStream(said("Tell me a story."))).stream.getReader();
for (let told = ""; !told; ) {
  const { value } = await reader.read();
  if (value?.type === "text-delta") told = value.delta;
}
await reader.cancel();
const failed = await generateText({ model, prompt: "Are you there?", maxRetries: 0 }).catch(() => ({ text: "no answer" }));
console.log(JSON.stringify([first.text, pieces.join(""), called.text, failed.text]));
