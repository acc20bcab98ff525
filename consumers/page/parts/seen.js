// Shows beside the conversation what the model saw for an answer: the parts of the window, memories, and what was left out.
import { html } from "../html.js";
import { get, path } from "../api.js";
import { t } from "../i18n.js";
import { useEscape, useLoad } from "../load.js";
import { href } from "../router.js";
import { IconButton, Failure, Loading, Badge } from "./common.js";
import { number } from "./format.js";
import { textOf } from "./messages.js";
import { WindowBar, dropped } from "./window_bar.js";

/** @param {string} thread @param {string} eventId @param {AbortSignal} signal */
export async function receiptOf(thread, eventId, signal) {
  let cursor = null;
  do {
    const page = await get(path`/api/threads/${thread}/receipts`, { query: { limit: 200, cursor }, signal });
    const found = page.items.find((/** @type {any} */ each) => each.receipt.answer_ids.includes(eventId));
    if (found) return found;
    cursor = page.next;
  } while (cursor);
  return null;
}

/** @param {{thread: string, turn: import("./turns.js").Spoken, onClose: () => void}} props */
export function Seen({ thread, turn, onClose }) {
  useEscape(onClose);
  const { value, error, loading } = useLoad(async (signal) => {
    const found = await receiptOf(thread, turn.eventId ?? "", signal);
    if (!found) return { receipt: null };
    const { receipt } = found;
    const [context, ...memories] = await Promise.all([
      get(path`/api/threads/${thread}/context`, { query: { as_of: receipt.as_of_seq }, signal }),
      ...receipt.memories.map((/** @type {string} */ id) => get(path`/api/memories/${id}`, { signal }).catch(() => null)),
    ]);
    return { receipt, context, memories };
  }, [thread, turn.eventId]);
  const { receipt, context, memories } = /** @type {any} */ (value ?? {});
  const notes = context?.messages.filter((/** @type {any} */ _, /** @type {number} */ at) => context.shares.messages[at]?.part === "memories") ?? [];
  return html`<aside class="seen" aria-label=${t("chat.saw")}>
    <header class="seen-head"><h2>${t("chat.saw")}</h2><${IconButton} label=${t("close")} icon="close" onClick=${onClose} /></header>
    <${Failure} error=${error} />
    ${loading ? html`<${Loading} />` : receipt === null ? html`<p class="muted">${t("seen.none")}</p>` : receipt && html`
      <p class="row"><${Badge}>${receipt.model}<//>
        ${context.matches === true && html`<${Badge} tone="good" title=${receipt.context_hash}>${t("seen.matches")}<//>`}
        ${context.matches === false && html`<${Badge} tone="warn">${t("seen.differs")}<//>`}</p>
      <${WindowBar} context=${context} compact />
      ${receipt.known?.preferences.length > 0 && html`<section><h3>${t("seen.preferences")}</h3>
        <ul class="plain-list">${receipt.known.preferences.map((/** @type {string} */ line) => html`<li key=${line} dir="auto">${line}</li>`)}</ul></section>`}
      ${!memories.length && notes.length > 0 ? html`<section><h3>${t("seen.notes")}</h3>
        ${notes.map((/** @type {any} */ note, /** @type {number} */ at) => html`<p key=${at} class="muted seen-note" dir="auto">${textOf(note)}</p>`)}</section>` : html`
      <section><h3>${t("seen.memories", { n: memories.length })}</h3>
        ${memories.length ? html`<ul class="plain-list">${memories.map((/** @type {any} */ memory, /** @type {number} */ at) => memory
          ? html`<li key=${memory.id} dir="auto"><a href=${href(["memories"], { memory: memory.id })}>${memory.content}</a></li>`
          : html`<li key=${at} class="faint">${t("seen.forgotten")}</li>`)}</ul>` : html`<p class="muted">${t("seen.no_memories")}</p>`}</section>`}
      <section><h3>${t("seen.left_out")}</h3><p class="muted">${dropped(context, receipt.dropped.count)}</p></section>
      ${receipt.recalled_chunks.length > 0 && html`<section><h3>${t("seen.recalled")}</h3><p class="muted">${t("seen.recalled_about", { n: receipt.recalled_chunks.length })}</p></section>`}
      <p class="faint small mono">seq ${number(receipt.as_of_seq)} · ${receipt.context_hash.slice(0, 16)}…</p>
      <a class="button" href=${href(["threads", thread, "context"], { seq: receipt.as_of_seq })}>${t("seen.open")}</a>`}
  </aside>`;
}
