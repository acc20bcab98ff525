// turnlog's HTTP API, typed from its OpenAPI document, with retries, and answers as streams that go on after a break.
import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./turnlog.d.ts";

export type { components, paths };

export interface Options {
  /** The server; http://127.0.0.1:8484 by default. */
  baseUrl?: string;
  /** A token of `turnlog token`, or an API key. */
  key: string;
  /** Whom a key with the scope act-as-user acts for. */
  user?: string;
  /** How often a request is sent again after a failure that may pass; 3 by default. */
  retries?: number;
  fetch?: typeof globalThis.fetch;
}

/** A server-sent event. */
export interface SentEvent {
  event: string;
  id?: string;
  data: any;
}

/** The data of an answer's events, by name; those from phase_change on are a team's. args: JSON. */
export interface AnswerEvents {
  started: { seq: number };
  context: { tiers: { tier: number; tokens: number; limit: number; turns: number }[]; memories: string[]; dropped: number; degraded: string | null };
  content: { chunk: string };
  tool_start: { id: string; name: string; args: string };
  tool_end: { id: string; name: string; result: string; is_error: boolean; latency_ms: number };
  restart: {};
  done: { response: Required<components["schemas"]["Answered"]> };
  phase_change: { agent: string; phase: Phase };
  plan: { agent: string; thought: string };
  agent_switch: { agent: string; to: string; task: string };
  run: { message: string; chain: string[]; tools: string[]; milliseconds: Partial<Record<Phase, number>>; routed: boolean; suggestions: string[] };
}
export type Phase = "PLAN" | "EXECUTE" | "SOLVE";

/** An event of an answer: its name says which data it has. */
export type AnswerEvent = { [Name in keyof AnswerEvents]: { event: Name; id?: string; data: AnswerEvents[Name] } }[keyof AnswerEvents];

/** An error of the server, as its problem details say. */
export class TurnlogError extends Error {
  status: number;
  code: string;
  retryAfterS?: number;

  constructor(status: number, code: string, message: string, retryAfterS?: number) {
    super(message);
    this.name = "TurnlogError";
    [this.status, this.code, this.retryAfterS] = [status, code, retryAfterS];
  }
}

export interface Turnlog extends Client<paths> {
  /**
   * Asks the server's agent in a conversation, and yields its answer as it comes; throws a TurnlogError where there is none.
   * signal: ends the request; the server still records the answer, unless it is cancelled there.
   */
  ask(thread: string, message: string, options?: { signal?: AbortSignal }): AsyncGenerator<AnswerEvent>;
}

const PASSING = new Set([408, 429, 502, 503, 504]);
const LONGEST_WAIT_S = 30;

export function connect(options: Options): Turnlog {
  const { baseUrl = "http://127.0.0.1:8484", retries = 3 } = options;
  const headers: Record<string, string> = { Authorization: `Bearer ${options.key}` };
  if (options.user !== undefined) headers["X-Turnlog-User"] = options.user;
  const fetch = retrying(options.fetch ?? globalThis.fetch, retries);
  const client = createClient<paths>({ baseUrl, headers, fetch });
  return { ...client, ask: (thread, message, { signal } = {}) => answer(client, thread, message, retries, signal) };
}

/** Returns the result's data, or throws a TurnlogError. */
export function need<T>(result: { data?: T; error?: any; response: Response }): NonNullable<T> {
  if (result.data != null) return result.data;
  throw errorOf(result.response.status, result.error);
}

function errorOf(status: number, problem: any): TurnlogError {
  const said = problem?.detail ?? problem?.error?.message ?? `the server answered ${status}`;
  return new TurnlogError(status, problem?.code ?? problem?.error?.code ?? "error", said, problem?.retryAfter);
}

/** Sends requests again after a break or a status that may pass. The key makes a write that is sent twice one write. */
function retrying(send: typeof globalThis.fetch, retries: number): (request: Request) => Promise<Response> {
  return async (request) => {
    if (!["GET", "HEAD"].includes(request.method) && !request.headers.has("Idempotency-Key")) {
      request.headers.set("Idempotency-Key", crypto.randomUUID());
    }
    for (let tries = 0; ; tries++) {
      const last = tries >= retries;
      try {
        const response = await send(request.clone());
        if (last || !PASSING.has(response.status)) return response;
        const wait = Number(response.headers.get("Retry-After")) || 0;
        if (wait > LONGEST_WAIT_S) return response;
        await response.body?.cancel();
        await pause(tries, wait, request.signal);
      } catch (error) {
        if (last || request.signal.aborted) throw error;
        await pause(tries, 0, request.signal);
      }
    }
  };
}

async function pause(tries: number, leastS: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  const seconds = Math.max(leastS, 0.25 * 2 ** tries * (0.5 + Math.random()));
  await new Promise<void>((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Reads an answer to its end; after a break the rest of it is asked for, by the id of the last event. */
async function* answer(
  client: Client<paths>,
  thread: string,
  message: string,
  retries: number,
  signal?: AbortSignal,
): AsyncGenerator<AnswerEvent> {
  const options = { params: { path: { thread } }, body: { message }, parseAs: "stream", signal } as const;
  let result: { data?: any; error?: any; response: Response } = await client.POST("/api/threads/{thread}/answers/stream", options);
  let seq: number | undefined;
  let id: string | undefined;
  for (let breaks = 0; ; breaks++) {
    try {
      for await (const event of events(need(result))) {
        if (event.event === "started") seq = event.data.seq;
        id = event.id ?? id;
        if (event.event === "error") throw errorOf(event.data.status ?? 500, event.data);
        yield event as AnswerEvent;
        if (event.event === "done") return;
      }
      throw new TypeError("the stream ended before the answer");
    } catch (error) {
      signal?.throwIfAborted(); // a stream that was stopped may say something else
      if (error instanceof TurnlogError || seq === undefined || breaks >= retries) throw error;
      await pause(breaks, 0, signal);
      const params = { path: { thread, seq }, header: { "last-event-id": id } };
      result = await client.GET("/api/threads/{thread}/answers/{seq}", { params, parseAs: "stream", signal });
    }
  }
}

/** Yields server-sent events; comments, which keep the connection open, are left out. */
export async function* events(stream: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<SentEvent> {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const fields: Record<string, string> = {};
        for (const line of part.split(/\r?\n/)) {
          const [, name, text] = line.match(/^(\w+): ?(.*)$/) ?? [];
          if (name) fields[name] = name in fields ? `${fields[name]}\n${text}` : text;
        }
        if (fields.data !== undefined) yield { event: fields.event ?? "message", id: fields.id, data: JSON.parse(fields.data) };
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
