// The list of conversations: search, open, rename, and delete (which can be undone for some seconds).
import { html, useEffect, useState } from "../html.js";
import { patch, path, post, remove } from "../api.js";
import { t } from "../i18n.js";
import { useEvery, useMarks, usePages } from "../load.js";
import { go, href } from "../router.js";
import { ago, clip, number, short } from "../parts/format.js";
import { Badge, Empty, Failure, Head, IconButton, Loading, Search, Time, useWrite } from "../parts/common.js";
import { prompt } from "../parts/dialog.js";
import { Icon } from "../parts/icons.js";
import { WindowedList } from "../parts/list.js";
import { undoable } from "../parts/toast.js";

const ROW = 64;
const LOOK_AGAIN_S = 15;

export default function Threads() {
  const [typed, setTyped] = useState("");
  const query = useSettled(typed.trim(), 200);
  const list = usePages("/api/threads", { limit: 50, query });
  const [leaving, setLeaving] = useState(/** @type {Set<string>} */ (new Set()));
  const marks = useMarks(list.items.map((each) => each.thread));
  const [write, busy] = useWrite();
  const [opened, setOpened] = useState(/** @type {string | null} */ (null)); // the conversation whose actions are shown on a phone
  useEvery(() => list.items.length <= 50 && list.reload(), LOOK_AGAIN_S, [list.items.length, query]);
  const shown = list.items.filter((thread) => !leaving.has(thread.thread));

  const open = () => write(async () => go(["threads", (await post("/api/threads", { body: {} })).thread]));
  const replace = (/** @type {any} */ renamed) => list.change(list.items.map((each) => (each.thread === renamed.thread ? renamed : each)));
  const rename = async (/** @type {any} */ thread) => {
    const label = await prompt({ title: t("threads.rename"), label: t("threads.name"), value: thread.label ?? "", action: t("save") });
    if (label) write(async () => replace(await patch(path`/api/threads/${thread.thread}`, { body: { label } })));
  };
  const name = (/** @type {any} */ thread) => write(async () => replace(await post(path`/api/threads/${thread.thread}/label`)));
  const leave = (/** @type {any} */ thread, /** @type {boolean} */ leaves) => setLeaving((/** @type {any} */ before) => {
    const after = new Set(before);
    if (leaves) after.add(thread.thread); else after.delete(thread.thread);
    return after;
  });
  const drop = (/** @type {any} */ thread) => {
    leave(thread, true);
    undoable(t("threads.deleted", { name: clip(thread.label || thread.thread, 40) }), async () => {
      if (!(await write(() => remove(path`/api/threads/${thread.thread}`)))) leave(thread, false);
    }, () => leave(thread, false));
  };

  const row = (/** @type {any} */ thread) => html`<div class="thread-row">
    <a class="thread-link" href=${href(["threads", thread.thread])}>
      <span class="thread-words"><b class="clip" dir="auto">${clip(thread.label || t("thread.unnamed"), 120)}</b>
        <span class="clip muted small" dir="auto">${clip(thread.summary, 160) || html`<span class="mono faint">${clip(thread.thread, 60)}</span>`}</span></span>
      <span class="thread-facts">
        ${marks[thread.thread]?.parked && html`<${Badge} tone="warn" title=${t("threads.parked_about")}><${Icon} name="warning" />${t("threads.parked")}<//>`}
        ${thread.archived && html`<${Badge}>${t("threads.archived")}<//>`}
        <span class="thread-number number" title=${t("threads.messages", { n: thread.messages })}>${t("threads.messages", { n: thread.messages })}</span>
        <span class="thread-number number" title=${t("threads.tokens_about")}>${marks[thread.thread]?.tokens ? t("threads.tokens", { n: short(marks[thread.thread].tokens) }) : ""}</span>
        <span class="thread-time muted"><${Time} time=${thread.last_active_at}>${ago(thread.last_active_at)}<//></span>
      </span>
    </a>
    <span class="thread-actions ${opened === thread.thread ? "open" : ""}">
      ${!thread.label && thread.messages > 0 && html`<${IconButton} label=${t("threads.label")} icon="star" disabled=${busy} onClick=${() => name(thread)} />`}
      <${IconButton} label=${t("threads.rename")} icon="edit" disabled=${busy} onClick=${() => rename(thread)} />
      <${IconButton} label=${t("threads.delete")} icon="trash" onClick=${() => drop(thread)} />
    </span>
    <button type="button" class="icon-button thread-more" aria-label=${t("threads.actions")} aria-expanded=${opened === thread.thread} onClick=${() => setOpened(opened === thread.thread ? null : thread.thread)}><${Icon} name="more" /></button>
  </div>`;

  return html`<section class="screen full">
    <${Head} title=${t("screens.threads")} about=${t("threads.about")}>
      <${Search} label=${t("threads.search")} value=${typed} onInput=${setTyped} />
      <button class="button primary" disabled=${busy} onClick=${open}><${Icon} name="plus" />${t("threads.new")}</button>
    <//>
    <${Failure} error=${list.error} retry=${list.reload} />
    ${list.loading && !list.items.length ? html`<${Loading} lines=${8} />`
      : shown.length ? html`<${WindowedList} className="card-list" items=${shown} height=${ROW} row=${row} keyOf=${(/** @type {any} */ each) => each.thread}
          label=${t("screens.threads")} onEnd=${list.more} />`
      : !list.error && (query
        ? html`<${Empty} icon="search" title=${t("threads.none_found", { query: clip(query, 60) })}>${t("threads.none_found_about")}<//>`
        : html`<${Empty} icon="chat" title=${t("threads.none")}>${t("threads.none_about")}<//>`)}
    <p class="sr" role="status">${query && !list.loading ? t("threads.found", { n: number(shown.length) }) : ""}</p>
  </section>`;
}

/** Returns a value that follows `value` once it has not changed for `pause` milliseconds. @param {string} value @param {number} pause */
function useSettled(value, pause) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), pause);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}
