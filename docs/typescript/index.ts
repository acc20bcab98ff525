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

/** An event of an answer: started, context, content, tool_start, tool_end, restart, done, error. */
export interface AnswerEvent {
  event: string;
  id?: string;
  data: any;
}

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
  /** Asks the server's agent in a conversation, and yields its answer as it comes. */
  ask(thread: string, message: string): AsyncGenerator<AnswerEvent>;
}

const PASSING = new Set([408, 429, 502, 503, 504]);
const LONGEST_WAIT_S = 30;

export function connect(options: Options): Turnlog {
  const { baseUrl = "http://127.0.0.1:8484", retries = 3 } = options;
  const headers: Record<string, string> = { Authorization: `Bearer ${options.key}` };
  if (options.user !== undefined) headers["X-Turnlog-User"] = options.user;
  const fetch = retrying(options.fetch ?? globalThis.fetch, retries);
  const client = createClient<paths>({ baseUrl, headers, fetch });
  return { ...client, ask: (thread, message) => answer(client, thread, message, retries) };
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
        await pause(tries, wait);
      } catch (error) {
        if (last || request.signal.aborted) throw error;
        await pause(tries, 0);
      }
    }
  };
}

async function pause(tries: number, leastS: number): Promise<void> {
  const seconds = Math.max(leastS, 0.25 * 2 ** tries * (0.5 + Math.random()));
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}

/** Reads an answer to its end; after a break the rest of it is asked for, by the id of the last event. */
async function* answer(client: Client<paths>, thread: string, message: string, retries: number): AsyncGenerator<AnswerEvent> {
  const path = { thread };
  const body = { message };
  const begin = () => client.POST("/api/threads/{thread}/answers/stream", { params: { path }, body, parseAs: "stream" });
  let result: { data?: any; error?: any; response: Response } = await begin();
  let seq: number | undefined;
  let id: string | undefined;
  for (let breaks = 0; ; breaks++) {
    try {
      for await (const event of events(need(result))) {
        if (event.event === "started") seq = event.data.seq;
        id = event.id ?? id;
        if (event.event === "error") throw errorOf(event.data.status ?? 500, event.data);
        yield event;
        if (event.event === "done") return;
      }
      throw new TypeError("the stream ended before the answer");
    } catch (error) {
      if (error instanceof TurnlogError || seq === undefined || breaks >= retries) throw error;
      await pause(breaks, 0);
      const params = { path: { thread, seq }, header: { "last-event-id": id } };
      result = await client.GET("/api/threads/{thread}/answers/{seq}", { params, parseAs: "stream" });
    }
  }
}

/** Yields server-sent events; comments, which keep the connection open, are left out. */
export async function* events(stream: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<AnswerEvent> {
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
