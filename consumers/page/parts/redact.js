// Strikes words of a turn, or the whole turn, from the log and everything made from it. First shows where the words occur.
import { html, useState } from "../html.js";
import { path, post } from "../api.js";
import { t } from "../i18n.js";
import { Badge, Field, useWrite } from "./common.js";
import { Dialog } from "./dialog.js";
import { number } from "./format.js";
import { Progress, followed } from "./job.js";

/** @param {{thread: string, seq: number, onClose: () => void, onDone: () => void}} props */
export function Redact({ thread, seq, onClose, onDone }) {
  const [words, setWords] = useState("");
  const [preview, setPreview] = useState(/** @type {any} */ (null));
  const [job, setJob] = useState(/** @type {any} */ (null));
  const [write, busy] = useWrite();
  const body = words.trim() ? { words: words.trim() } : { whole: true };
  const look = (/** @type {any} */ event) => {
    event.preventDefault();
    write(async () => setPreview(await post(path`/api/threads/${thread}/turns/${seq}/redact/preview`, { body })));
  };
  const strike = () => write(async () => {
    await followed(await post(path`/api/threads/${thread}/turns/${seq}/redact`, { body }), setJob);
    onDone();
  });
  const events = preview && Object.values(preview.events).reduce((/** @type {number} */ sum, count) => sum + /** @type {number} */ (count), 0);
  return html`<${Dialog} title=${t("redact.title")} onClose=${onClose}>
    ${job?.state === "done" ? html`<${Receipt} data=${job.result.data} onClose=${onClose} />` : job ? html`<${Progress} job=${job} />`
      : preview ? html`<div class="stack">
        <p>${t("redact.found", { events: t("operation.behind", { n: events }), memories: t("seen.memories", { n: preview.memories }) })}</p>
        <p class="muted">${t("redact.sure")}</p>
        <div class="actions"><button type="button" class="button" onClick=${() => setPreview(null)}>${t("redact.back")}</button>
          <button type="button" class="button danger" disabled=${busy} onClick=${strike}>${t("redact.action")}</button></div></div>`
      : html`<form class="stack" onSubmit=${look}>
        <p class="muted">${t("redact.about")}</p>
        <${Field} label=${t("redact.words")} hint=${t("redact.whole")}><input dir="auto" maxlength="1000" value=${words} onInput=${(/** @type {any} */ event) => setWords(event.target.value)} /><//>
        <div class="actions"><button type="button" class="button" onClick=${onClose}>${t("cancel")}</button>
          <button class="button primary" disabled=${busy}>${t("redact.look")}</button></div></form>`}
  <//>`;
}

/** @param {{data: any, onClose: () => void}} props */
function Receipt({ data, onClose }) {
  return html`<section class="stack" role="region" aria-label=${t("privacy.receipt")}>
    <p class="row"><${Badge} tone=${data.hits ? "bad" : "good"}>${t(data.hits ? "privacy.left" : "privacy.nothing_left")}<//></p>
    <dl class="facts"><dt>${t("redact.replaced")}</dt><dd class="number">${number(data.events + data.removed)}</dd>
      <dt>${t("redact.forgotten")}</dt><dd class="number">${number(data.memories)}</dd>
      <dt>${t("privacy.searched")}</dt><dd class="number">${number(data.strings_searched)}</dd></dl>
    <div class="actions"><button type="button" class="button primary" onClick=${onClose}>${t("close")}</button></div></section>`;
}
