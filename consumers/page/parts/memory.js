// Shows one memory: its words, the parts of its score, its sources, its earlier versions and its actions.
import { html, useState } from "../html.js";
import { get, path, post, put, remove } from "../api.js";
import { named, t } from "../i18n.js";
import { useEscape, useLoad } from "../load.js";
import { href } from "../router.js";
import { Meter } from "./bars.js";
import { Badge, Failure, IconButton, Loading, useWrite } from "./common.js";
import { Chain } from "./chain.js";
import { confirm, prompt } from "./dialog.js";
import { day, moment, number } from "./format.js";
import { Icon } from "./icons.js";

/** @param {{id: string, user?: string, changes: number, onClose: () => void, onChanged: () => void, onOpen: (id: string) => void}} props user: another person, whose memory cannot be changed here */
export function Memory({ id, user, changes, onClose, onChanged, onOpen }) {
  const { value, error, loading, reload } = useLoad(async (signal) => {
    const options = { query: { user }, signal };
    const [memory, { history }] = await Promise.all([get(path`/api/memories/${id}`, options), get(path`/api/memories/${id}/history`, options)]);
    return { memory, history };
  }, [id, changes]);
  const { memory, history } = /** @type {any} */ (value ?? {});
  useEscape(onClose);
  return html`<aside class="card memory-detail" aria-label=${t("memories.detail")}>
    <header class="seen-head"><h2>${t("memories.detail")}</h2><${IconButton} label=${t("close")} icon="close" onClick=${onClose} /></header>
    <${Failure} error=${error} retry=${reload} />
    ${!memory ? loading && html`<${Loading} />` : html`
      <p class="memory-content" dir="auto">${memory.content || t("seen.forgotten")}</p>
      <p class="row"><${Badge} tone="accent">${t(`kind.${memory.kind}`)}<//>${memory.category && html`<${Badge}>${named("categories", memory.category)}<//>`}
        <${Badge}>${t(`tiers.${memory.score.tier}`)}<//>
        ${memory.status !== "valid" && html`<${Badge} tone="warn">${named("memories.status", memory.status === "closed" ? memory.closed_reason : memory.status)}<//>`}</p>
      ${!user && html`<${Actions} memory=${memory} history=${history} onChanged=${(/** @type {string | undefined} */ now) => { onChanged(); if (now && now !== id) onOpen(now); }} />`}
      <section class="stack tight"><h3>${t("memories.score")} <span class="muted number">${number(memory.score.total, 2)}</span></h3>
        <${Meter} label=${t("memories.importance")} value=${memory.score.importance} />
        <${Meter} label=${t("memories.freshness")} value=${memory.score.freshness} kind="2" />
        <${Meter} label=${t("memories.confidence")} value=${memory.score.confidence} kind="memory" />
        <${Meter} label=${t("memories.access")} value=${memory.score.access_bonus} most=${0.3} kind="1" /></section>
      <section class="stack tight"><h3>${t("memories.held")}</h3>
        <dl class="facts"><dt>${t("memories.from")}</dt><dd>${moment(memory.valid_from)}</dd>
          <dt>${t("memories.to")}</dt><dd>${memory.valid_to ? moment(memory.valid_to) : t("memories.now")}</dd>
          ${memory.expires_at && html`<dt>${t("memories.expires")}</dt><dd>${day(memory.expires_at)}</dd>`}
          <dt>${t("memories.origin")}</dt><dd>${named("memories.origins", memory.origin)}${memory.rule ? ` · ${memory.rule}` : ""}</dd></dl></section>
      ${memory.sources.length > 0 && html`<section class="stack tight"><h3>${t("memories.said")}</h3>
        ${memory.sources.map((/** @type {any} */ source) => html`<blockquote key=${source.event_id} class="quote"><p dir="auto">${source.quote}</p>
          <footer class="muted small">${moment(source.said_at)} · ${user ? t("memories.event", { seq: source.seq }) : html`<a href=${href(["threads", source.thread], { seq: source.seq })}>${t("memories.event", { seq: source.seq })}</a>`}</footer></blockquote>`)}</section>`}
      ${history.length > 1 && html`<section class="stack tight"><h3>${t("memories.chain")}</h3><${Chain} history=${history} current=${memory.id} onOpen=${onOpen} /></section>`}`}
  </aside>`;
}

/** @param {{memory: any, history: any[], onChanged: (now?: string) => void}} props */
function Actions({ memory, history, onChanged }) {
  const [write, busy] = useWrite();
  const [rating, setRating] = useState(/** @type {number | null} */ (null));
  const address = path`/api/memories/${memory.id}`;
  const does = async (/** @type {() => Promise<any>} */ work, /** @type {string} */ done) => {
    /** @type {any} */ let result;
    if (!(await write(async () => { result = await work(); }, done))) return;
    setRating(null);
    onChanged(result?.memory);
  };
  const edit = async () => {
    const content = await prompt({ title: t("memories.edit"), label: t("memories.content"), value: memory.content, multiline: true, action: t("save") });
    if (content && content !== memory.content) does(() => put(`${address}/content`, { body: { content } }), t("memories.edited"));
  };
  const forget = async () => {
    if (await confirm({ title: t("memories.forget"), text: t("memories.forget_about"), action: t("memories.forget"), danger: true })) does(() => remove(address), t("memories.forgot"));
  };
  const revert = (/** @type {any} */ version) => does(() => post(path`/api/memories/${version.id}/revert`), t("memories.reverted"));
  const before = history.slice(0, history.findIndex((each) => each.id === memory.id)).findLast((each) => each.content);
  if (memory.status !== "valid" && memory.status !== "pending") {
    const mayReturn = memory.status === "closed" && memory.content && memory.closed_reason !== "forgotten";
    return mayReturn && html`<button class="button small" disabled=${busy} onClick=${() => revert(memory)}><${Icon} name="undo" />${t("memories.hold_again")}</button>`;
  }
  return html`<div class="stack tight">
    <div class="row memory-actions">
      ${memory.status === "valid" && html`<button class="button small" disabled=${busy} title=${t("memories.confirm_about")} onClick=${() => does(() => put(`${address}/importance`, { body: { importance: memory.importance } }), t("memories.confirmed"))}><${Icon} name="check" />${t("memories.confirm")}</button>`}
      <button class="button small" disabled=${busy} onClick=${edit}><${Icon} name="edit" />${t("memories.edit")}</button>
      <button class="button small" disabled=${busy} aria-expanded=${rating !== null} onClick=${() => setRating(rating === null ? memory.importance : null)}><${Icon} name="star" />${t("memories.rate")}</button>
      ${before && html`<button class="button small" disabled=${busy} title=${before.content} onClick=${() => revert(before)}><${Icon} name="undo" />${t("memories.revert")}</button>`}
      <button class="button small" disabled=${busy} onClick=${forget}><${Icon} name="trash" />${t("memories.forget")}</button>
    </div>
    ${rating !== null && html`<div class="row rate"><input class="grow" type="range" min="0" max="1" step="0.05" value=${rating} aria-label=${t("memories.importance")} onInput=${(/** @type {any} */ event) => setRating(Number(event.target.value))} />
      <span class="number">${number(rating, 2)}</span><button class="button small primary" disabled=${busy} onClick=${() => does(() => put(`${address}/importance`, { body: { importance: rating } }), t("memories.rated"))}>${t("save")}</button></div>`}
  </div>`;
}
