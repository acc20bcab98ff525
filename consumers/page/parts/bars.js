// Draws bars to scale. Their widths are set as properties of elements, because the page's policy forbids styles in HTML.
import { html } from "../html.js";
import { number } from "./format.js";

/** @typedef {{key: string, label: string, value: number, kind: string, title?: string}} Part kind: a class of `bar-…` for its colour */

/**
 * Shows the parts of a whole side by side. active: the key of the highlighted part. onActive: called when a part is pointed at or
 * focused; onChoose: called when a part is pressed.
 * @param {{parts: Part[], total?: number, label: string, active?: string | null, onActive?: (key: string | null) => void, onChoose?: (key: string) => void, thick?: boolean}} props
 */
export function StackedBar({ parts, total, label, active, onActive, onChoose, thick = false }) {
  const whole = total ?? (parts.reduce((sum, part) => sum + part.value, 0) || 1);
  return html`<div class="stacked ${thick ? "thick" : ""}" role=${onActive || onChoose ? "group" : "img"} aria-label=${label} onMouseLeave=${onActive && (() => onActive(null))}>
    ${parts.filter((part) => part.value > 0).map((part) => {
      const common = {
        key: part.key,
        class: `stacked-part bar-${part.kind} ${active && active !== part.key ? "dim" : ""}`,
        title: part.title ?? `${part.label}: ${number(part.value)}`,
        style: { flexGrow: part.value / whole },
      };
      return onActive || onChoose
        ? html`<button type="button" ...${common} data-part=${part.key} aria-label=${common.title} aria-pressed=${active === part.key}
            onMouseMove=${() => onActive?.(part.key)} onFocus=${() => onActive?.(part.key)} onBlur=${() => onActive?.(null)} onClick=${() => (onActive?.(part.key), onChoose?.(part.key))} />`
        : html`<span ...${common} />`;
    })}
  </div>`;
}

/** Explains the colours of a bar. @param {{parts: Part[], active?: string | null, onActive?: (key: string | null) => void}} props */
export function Legend({ parts, active, onActive }) {
  return html`<ul class="legend">${parts.map((part) => html`<li key=${part.key} class=${active && active !== part.key ? "dim" : ""}
      onMouseEnter=${() => onActive?.(part.key)} onMouseLeave=${() => onActive?.(null)}>
    <i class="swatch bar-${part.kind}" /><span>${part.label}</span><b class="number">${number(part.value)}</b>
  </li>`)}</ul>`;
}

/** Shows a value between 0 and `most` as a bar with its number. @param {{value: number, most?: number, kind?: string, label: string, text?: string}} props */
export function Meter({ value, most = 1, kind = "accent", label, text }) {
  const share = Math.max(0, Math.min(1, value / (most || 1)));
  return html`<div class="meter" role="img" aria-label=${`${label}: ${text ?? number(value, 2)}`}>
    <span class="meter-label">${label}</span>
    <span class="meter-track"><span class="meter-fill bar-${kind}" style=${{ width: `${share * 100}%` }} /></span>
    <span class="meter-value number">${text ?? number(value, 2)}</span>
  </div>`;
}
