// turnlog as the memory of any model of Vercel's AI SDK: what was said is stored, and what is known goes into the prompt.
import type { LanguageModelV4Middleware as LanguageModelMiddleware } from "@ai-sdk/provider";
import { need, type Turnlog } from "./index.ts";

type Call = Parameters<NonNullable<LanguageModelMiddleware["transformParams"]>>[0]["params"];
type Prompt = Call["prompt"];
type Turn = { role: "user" | "assistant"; content: string };

export interface MemoryOptions {
  /** Called when an answer could not be stored, which does not fail; console.error by default. */
  onError?: (error: unknown) => void;
}

/**
 * Wraps a model: `wrapLanguageModel({ model, middleware: turnlogMemory(turnlog, "thread") })`.
 *
 * The question is stored before the model is asked, so that it is not lost when the model fails; when turnlog is away the
 * call fails. Of an answer that is stopped, or breaks off, what came is stored.
 */
export function turnlogMemory(turnlog: Turnlog, thread: string, options: MemoryOptions = {}): LanguageModelMiddleware {
  const onError = options.onError ?? ((error) => console.error("turnlog: an answer is not stored:", error));

  async function append(turn: Turn, signal?: AbortSignal): Promise<void> {
    if (!turn.content) return;
    const params = { path: { thread } };
    need(await turnlog.POST("/api/threads/{thread}/turns", { params, body: { turns: [turn] }, signal }));
  }
  const ask = ({ prompt, abortSignal }: Call) => append({ role: "user", content: question(prompt) }, abortSignal);
  const answered = (text: string) => append({ role: "assistant", content: text }).catch(onError);

  return {
    specificationVersion: "v4",
    transformParams: async ({ params }) => {
      const query = question(params.prompt);
      if (!query) return params;
      const found = need(await turnlog.POST("/api/recall", { body: { query }, signal: params.abortSignal }));
      const lines = [...found.memories.map((memory) => memory.content), ...found.items.map((item) => item.text)];
      const known = `What earlier conversations say about this:\n${lines.map((line) => `- ${line}`).join("\n")}`;
      return lines.length ? { ...params, prompt: [{ role: "system", content: known }, ...params.prompt] } : params;
    },
    wrapGenerate: async ({ doGenerate, params }) => {
      await ask(params);
      const result = await doGenerate();
      await answered(result.content.map((part) => (part.type === "text" ? part.text : "")).join(""));
      return result;
    },
    wrapStream: async ({ doStream, params }) => {
      await ask(params);
      const { stream, ...rest } = await doStream();
      const parts = stream.getReader();
      let text = "";
      const recorded: typeof stream = new ReadableStream({
        async pull(controller) {
          try {
            const { done, value } = await parts.read();
            if (!done) {
              if (value.type === "text-delta") text += value.delta;
              return controller.enqueue(value);
            }
          } catch (error) {
            await answered(text);
            return controller.error(error);
          }
          await answered(text);
          controller.close();
        },
        async cancel(reason) {
          await parts.cancel(reason);
          await answered(text);
        },
      });
      return { stream: recorded, ...rest };
    },
  };
}

/** The user's last message as text; "" where the prompt ends with something else, such as the result of a tool. */
function question(prompt: Prompt): string {
  const last = prompt.at(-1);
  if (last?.role !== "user") return "";
  return last.content.map((part) => (part.type === "text" ? part.text : "")).join("");
}
