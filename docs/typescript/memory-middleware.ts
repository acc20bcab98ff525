// turnlog as the memory of any model of Vercel's AI SDK: what was said is stored, and what is known goes into the prompt.
import type { LanguageModelV4Middleware as LanguageModelMiddleware } from "@ai-sdk/provider";
import { need, type Turnlog } from "./index.ts";

type Prompt = Parameters<NonNullable<LanguageModelMiddleware["transformParams"]>>[0]["params"]["prompt"];

/** Wraps a model: `wrapLanguageModel({ model, middleware: turnlogMemory(turnlog, "thread") })`. */
export function turnlogMemory(turnlog: Turnlog, thread: string): LanguageModelMiddleware {
  // The question is stored with the first step of its answer, which may be a call of a tool without any text.
  async function record(prompt: Prompt, text: string): Promise<void> {
    const turns = [
      { role: "user" as const, content: question(prompt) },
      { role: "assistant" as const, content: text },
    ].filter((turn) => turn.content);
    if (!turns.length) return;
    need(await turnlog.POST("/api/threads/{thread}/turns", { params: { path: { thread } }, body: { turns } }));
  }
  return {
    specificationVersion: "v4",
    transformParams: async ({ params }) => {
      const query = question(params.prompt);
      if (!query) return params;
      const found = need(await turnlog.POST("/api/recall", { body: { query } }));
      const lines = [...found.memories.map((memory) => memory.content), ...found.items.map((item) => item.text)];
      const known = `What earlier conversations say about this:\n${lines.map((line) => `- ${line}`).join("\n")}`;
      return lines.length ? { ...params, prompt: [{ role: "system", content: known }, ...params.prompt] } : params;
    },
    wrapGenerate: async ({ doGenerate, params }) => {
      const result = await doGenerate();
      const text = result.content.map((part) => (part.type === "text" ? part.text : "")).join("");
      await record(params.prompt, text);
      return result;
    },
    wrapStream: async ({ doStream, params }) => {
      const { stream, ...rest } = await doStream();
      let text = "";
      type Part = typeof stream extends ReadableStream<infer T> ? T : never;
      const recording = new TransformStream<Part, Part>({
        transform(part, controller) {
          if (part.type === "text-delta") text += part.delta;
          controller.enqueue(part);
        },
        flush: () => record(params.prompt, text),
      });
      return { stream: stream.pipeThrough(recording), ...rest };
    },
  };
}

/** The user's last message as text; "" where the prompt ends with something else, such as the result of a tool. */
function question(prompt: Prompt): string {
  const last = prompt.at(-1);
  if (last?.role !== "user") return "";
  return last.content.map((part) => (part.type === "text" ? part.text : "")).join("");
}
