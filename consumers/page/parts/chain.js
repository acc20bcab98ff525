// Shows the versions of a fact on a time axis: each is a bar over the time in which it was valid.
import { html } from "../html.js";
import { named, t } from "../i18n.js";
import { clip, day } from "./format.js";

const WIDTH = 320;
const ROW = 22;

/** @param {{history: any[], current: string, onOpen: (id: string) => void}} props */
export function Chain({ history, current, onOpen }) {
  const now = Date.now();
  const times = history.flatMap((each) => [Date.parse(each.valid_from), each.valid_to ? Date.parse(each.valid_to) : now]);
  const first = Math.min(...times);
  const span = Math.max(1, Math.max(...times) - first);
  const x = (/** @type {string | null} */ time) => 6 + (((time ? Date.parse(time) : now) - first) / span) * (WIDTH - 12);
  return html`<div class="chain">
    <svg viewBox="0 0 ${WIDTH} ${history.length * ROW}" role="img" aria-label=${t("memories.chain")}>
      ${history.map((each, at) => {
        const [from, to, y] = [x(each.valid_from), Math.max(x(each.valid_to), x(each.valid_from) + 4), at * ROW + ROW / 2];
        return html`<g key=${each.id} class=${each.id === current ? "current" : ""}><title>${each.content}</title>
          ${at > 0 && html`<path class="chain-link" d="M${from} ${y - ROW}V${y}" />`}
          <line x1=${from} x2=${to} y1=${y} y2=${y} class="chain-span ${each.status === "valid" ? "valid" : ""}" /><circle cx=${from} cy=${y} r="4" class=${each.status === "valid" ? "valid" : ""} /></g>`;
      })}
    </svg>
    <ol>${history.map((each) => html`<li key=${each.id}><button class="chain-version" aria-current=${each.id === current ? "true" : null} onClick=${() => onOpen(each.id)}>
      <span class="muted small number">${day(each.valid_from)}</span> <span dir="auto">${clip(each.content, 120) || t("seen.forgotten")}</span>
      ${each.status !== "valid" && html`<span class="faint small"> · ${named("memories.status", each.status === "closed" ? each.closed_reason : each.status)}</span>`}</button></li>`)}</ol>
  </div>`;
}
