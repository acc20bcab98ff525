// The npm package @ai-sdk/openai: the arguments are the wire, `chat` or `responses`, and `talk` or `recall`.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: process.env.TURNLOG_URL, apiKey: process.env.TURNLOG_KEY });
const [wire, part] = process.argv.slice(2);
const model = wire === "responses" ? openai.responses("m") : openai.chat("m");
const called = [];
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    called.push(city);
    return "rain";
  },
});
const dog = { role: "user", content: "My dog is called Sesame." };

async function talk() {
  const first = await generateText({ model, messages: [dog], maxRetries: 0 });
  const history = [dog, ...first.response.messages, { role: "user", content: "And my cat is called Poppy." }];
  const pieces = [];
  const stream = streamText({ model, messages: history, maxRetries: 0 });
  for await (const piece of stream.textStream) pieces.push(piece);
  const prompt = "What is the weather in Ulm?";
  const answer = await generateText({ model, prompt, tools: { weather }, stopWhen: isStepCount(3), maxRetries: 0 });
  return { heard: first.text, pieces, called, after_tool: answer.text, tokens: first.usage.outputTokens };
}

async function recall() {
  return { recalled: (await generateText({ model, prompt: "What is my dog called?", maxRetries: 0 })).text };
}

console.log(JSON.stringify(await (part === "recall" ? recall() : talk())));
