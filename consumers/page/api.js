// Calls the public HTTP API: requests, and streams of server-sent events.
import { t } from "./i18n.js";
import { language, session, signOut } from "./session.js";

/** An error response of the server (RFC 9457). The message is its `message`, if that is for a person; otherwise the title in
 * Chinese, unless the detail is Chinese too, and the detail in English. All but the English detail are followed by the
 * candidates and the seconds to wait. */
export class Problem extends Error {
  /** @param {number} status @param {any} body */
  constructor(status, body) {
    const fields = (body?.errors ?? []).map((/** @type {any} */ each) => each.where.at(-1)).join(", ");
    const isEnglish = !/^\p{Script=Han}/u.test(body?.detail ?? ""); // some details are in Chinese
    const why = language.get() === "zh" && isEnglish ? `${body?.title ?? ""}${fields && `：${fields}`}` : body?.detail || body?.title;
    const isForPerson = body?.message && (body.shouldRetry || body.category !== "unknown"); // other messages only refer to the detail
    const more = isForPerson || language.get() === "zh" ? [...(body?.candidates ?? []).map((/** @type {any} */ each) => `“${each.content}”`), body?.retryAfter && t("retry_after", { n: body.retryAfter })] : []; // an English detail already contains them
    super([(isForPerson ? body.message : why) || `HTTP ${status}`, ...more].filter(Boolean).join(" "));
    this.status = status;
    this.code = body?.code ?? "";
  }
}

/**
 * @typedef {object} Options
 * @property {Record<string, any>} [query] values that are null, undefined or "" are left out; a list becomes one parameter per item
 * @property {any} [body] sent as JSON
 * @property {AbortSignal} [signal]
 * @property {Record<string, string>} [headers]
 */

/** Returns a path with percent-encoded values, for example path`/api/threads/${id}/turns`.
 * @param {TemplateStringsArray} parts @param {...any} values @returns {string} */
export function path(parts, ...values) {
  return parts.reduce((all, part, at) => all + encodeURIComponent(String(values[at - 1])) + part);
}

/** @param {string} address @param {Record<string, any>} [query] @returns {string} */
export function withQuery(address, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") parameters.append(name, String(one));
    }
  }
  const text = parameters.toString();
  return text ? `${address}?${text}` : address;
}

/** Sends a request and returns the response. Throws Problem for an error response, TypeError if the server cannot be reached.
 * @param {string} method @param {string} address @param {Options} [options] @returns {Promise<Response>} */
export async function send(method, address, { query, body, signal, headers } = {}) {
  const token = session.get()?.token;
  const response = await fetch(withQuery(address, query), {
    method,
    signal,
    headers: {
      ...(token ? { Authorization: `Bearer ${token}` } : {}),
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      "Accept-Language": language.get(),
      "X-Turnlog-Timezone": Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC",
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (response.ok) return response;
  const problem = new Problem(response.status, await response.json().catch(() => null));
  if (response.status === 401 && token && token === session.get()?.token) signOut(problem.message);
  throw problem;
}

/** @param {string} method */
const sender = (method) => async (/** @type {string} */ address, /** @type {Options} */ options = {}) => {
  const response = await send(method, address, options);
  return response.status === 204 ? null : response.json();
};

/** These functions return the JSON of the response, or null if it has no body: await get(path`/api/threads/${id}`, {query}). */
export const get = sender("GET");
export const post = sender("POST");
export const put = sender("PUT");
export const patch = sender("PATCH");
export const remove = sender("DELETE");

/** @typedef {{event: string, id: string, data: any}} ServerEvent */

/**
 * Yields server-sent events until the server ends the stream or the signal aborts it.
 * @param {string} method @param {string} address @param {Options} [options]
 * @returns {AsyncGenerator<ServerEvent>}
 */
export async function* events(method, address, options = {}) {
  const response = await send(method, address, { ...options, headers: { Accept: "text/event-stream", ...options.headers } });
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const event = parsed(block);
        if (event) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** @param {string} block @returns {ServerEvent | null} */
function parsed(block) {
  const found = { event: "message", id: "", data: "" };
  for (const line of block.split(/\r?\n/)) {
    const at = line.indexOf(":");
    const name = line.slice(0, at);
    const value = line.slice(at + 1).replace(/^ /, "");
    if (name === "data") found.data += (found.data && "\n") + value;
    else if (name === "event" || name === "id") found[name] = value;
  }
  return found.data ? { ...found, data: JSON.parse(found.data) } : null;
}
