// Small parts that every screen uses.
import { html, useState } from "../html.js";
import { t } from "../i18n.js";
import { undated } from "./format.js";
import { Icon } from "./icons.js";
import { toast } from "./toast.js";

/** Shows the head of a screen: title, a line about the screen, and its actions.
 * @param {{title: any, about?: any, children?: any}} props */
export function Head({ title, about, children }) {
  return html`<header class="head">
    <div class="head-words"><h1>${title}</h1>${about && html`<p class="muted">${about}</p>`}</div>
    <div class="head-actions">${children}</div>
  </header>`;
}

/** Returns a text whose `commands` in backticks are shown as code. @param {string} text */
const coded = (text) => text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

/** Shows what to do when a list is empty.
 * @param {{icon: import("./icons.js").IconName, title: string, children?: any}} props */
export function Empty({ icon, title, children }) {
  return html`<div class="empty">
    <span class="empty-icon"><${Icon} name=${icon} /></span>
    <h2>${title}</h2>
    ${children && html`<p class="muted">${typeof children === "string" ? coded(children) : children}</p>`}
  </div>`;
}

/** Shows grey lines while something is loading. @param {{lines?: number}} props */
export function Loading({ lines = 4 }) {
  return html`<div class="loading" role="status" aria-label=${t("loading")}>
    ${Array.from({ length: lines }, (_, at) => html`<span key=${at} class="skeleton" />`)}
  </div>`;
}

/** @param {{error: Error | null, retry?: () => void}} props */
export function Failure({ error, retry }) {
  if (!error) return null;
  const text = error instanceof TypeError ? t("server_away") : error.message;
  return html`<div class="failure" role="alert">
    <${Icon} name="warning" /><span>${coded(text)}</span>
    ${retry && html`<button class="button small" onClick=${retry}>${t("try_again")}</button>`}
  </div>`;
}

/** @param {{tone?: "good" | "warn" | "bad" | "accent" | "quiet", title?: string, children?: any}} props */
export function Badge({ tone = "quiet", title, children }) {
  return html`<span class="badge ${tone}" title=${title}>${children}</span>`;
}

/** Shows a time as the given words, with the exact time as its title. @param {{time: string, children: any}} props */
export function Time({ time, children }) {
  return html`<time datetime=${time} title=${undated(time) ? t("undated") : new Date(time).toLocaleString()}>${children}</time>`;
}

/** Shows one number with its name. @param {{label: string, value: any, tone?: string, title?: string}} props */
export function Tile({ label, value, tone = "", title }) {
  return html`<div class="tile" title=${title}><span class="tile-label">${label}</span><b class="tile-value number ${tone}">${value}</b></div>`;
}

/** @param {{label: string, icon: import("./icons.js").IconName, onClick: (event: any) => void, pressed?: boolean, disabled?: boolean}} props */
export function IconButton({ label, icon, onClick, pressed, disabled }) {
  return html`<button type="button" class="icon-button" title=${label} aria-label=${label} aria-pressed=${pressed} disabled=${disabled} onClick=${onClick}>
    <${Icon} name=${icon} />
  </button>`;
}

/** Shows a few options as buttons side by side. @param {{label: string, value: string, options: [string, any][], onChange: (value: string) => void}} props */
export function Segments({ label, value, options, onChange }) {
  return html`<div class="segments" role="group" aria-label=${label}>
    ${options.map(([key, words]) => html`<button key=${key} type="button" aria-pressed=${key === value} onClick=${() => onChange(key)}>${words}</button>`)}
  </div>`;
}

/** @param {{label: string, hint?: string, children: any}} props children: the control */
export function Field({ label, hint, children }) {
  return html`<label class="field"><span class="field-label">${label}</span>${children}${hint && html`<span class="field-hint">${hint}</span>`}</label>`;
}

/** @param {{value: string, label: string, onInput: (value: string) => void}} props */
export function Search({ value, label, onInput }) {
  return html`<label class="search"><${Icon} name="search" />
    <input type="search" value=${value} placeholder=${label} aria-label=${label} onInput=${(/** @type {any} */ event) => onInput(event.target.value)} />
  </label>`;
}

/** Shows a text in a frame, with a button that copies it. @param {{text: string, label?: string}} props */
export function Code({ text, label }) {
  return html`<figure class="code">
    <figcaption>${label}<${IconButton} label=${t("copy")} icon="copy" onClick=${() => copy(text)} /></figcaption>
    <pre tabindex="0"><code>${text}</code></pre>
  </figure>`;
}

/** @param {any} value */
export function Json({ value }) {
  return html`<${Code} text=${JSON.stringify(value, null, 2)} label="JSON" />`;
}

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast(t("copied"));
  } catch {
    toast(t("copy_failed"), { tone: "bad" });
  }
}

/** Returns [run, busy]: `run` does a write and shows its error, if any; `busy` is true meanwhile, to disable the button.
 * @returns {[(work: () => Promise<any>, done?: string) => Promise<boolean>, boolean]} */
export function useWrite() {
  const [busy, setBusy] = useState(false);
  return [
    async (work, done) => {
      setBusy(true);
      try {
        await work();
        if (done) toast(done);
        return true;
      } catch (/** @type {any} */ error) {
        toast(error instanceof TypeError ? t("server_away") : error.message, { tone: "bad" });
        return false;
      } finally {
        setBusy(false);
      }
    },
    busy,
  ];
}
