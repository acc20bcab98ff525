// Shows lists of any length. Only the rows in view are in the document.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";

const AROUND = 8; // more rows above and below the rows in view

/**
 * Shows rows of equal height, which scroll in the space of the list. Arrow keys, Home and End move the focus.
 * @param {{items: any[], height: number, row: (item: any, at: number) => any, keyOf: (item: any) => string | number,
 *   label: string, onEnd?: () => void, follow?: boolean, className?: string}} props
 *   height: the height of a row in pixels. onEnd: called near the end of the items. follow: stays at the end when items are added.
 */
export function WindowedList({ items, height, row, keyOf, label, onEnd, follow = false, className = "" }) {
  const frame = useRef(/** @type {any} */ (null));
  const [view, setView] = useState({ top: 0, size: 800 });
  const measure = () => {
    const { scrollTop, clientHeight } = frame.current;
    setView((/** @type {any} */ before) => (before.top === scrollTop && before.size === clientHeight ? before : { top: scrollTop, size: clientHeight }));
  };
  useLayoutEffect(() => {
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(frame.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (follow) frame.current.scrollTop = items.length * height;
  }, [follow, items.length]);
  const first = Math.max(0, Math.floor(view.top / height) - AROUND);
  const last = Math.min(items.length, Math.ceil((view.top + view.size) / height) + AROUND);
  useEffect(() => {
    if (onEnd && last >= items.length - AROUND) onEnd();
  }, [last, items.length]);
  const move = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    const current = /** @type {any} */ (document.activeElement)?.closest?.("[data-at]");
    if (step === undefined || !current || /** @type {any} */ (event.target).matches("input, textarea, select")) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(items.length - 1, Number(current.dataset.at) + step));
    if (at * height < view.top) frame.current.scrollTop = at * height;
    if ((at + 1) * height > view.top + view.size) frame.current.scrollTop = (at + 1) * height - view.size;
    requestAnimationFrame(() => frame.current?.querySelector(`[data-at="${at}"]`)?.querySelector("a, button, [tabindex]")?.focus());
  };
  return html`<div ref=${frame} class="windowed ${className}" onScroll=${measure} onKeyDown=${move}>
    <div class="windowed-all" role="list" aria-label=${label} style=${{ height: `${items.length * height}px` }}>
      ${items.slice(first, last).map((item, at) => html`<div key=${keyOf(item)} role="listitem" class="windowed-row" data-at=${first + at}
        aria-setsize=${items.length} aria-posinset=${first + at + 1} style=${{ height: `${height}px`, transform: `translateY(${(first + at) * height}px)` }}>
        ${row(item, first + at)}
      </div>`)}
    </div>
  </div>`;
}

/**
 * Shows a table of up to a few hundred rows. columns: [heading, cell(item), "number" | "wide" | undefined].
 * @param {{items: any[], columns: [any, (item: any) => any, string?][], keyOf: (item: any) => string | number, label: string}} props
 */
export function Table({ items, columns, keyOf, label }) {
  return html`<div class="table-frame" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${columns.map(([heading, , kind], at) => html`<th key=${at} class=${kind ?? ""} scope="col">${heading}</th>`)}</tr></thead>
    <tbody>${items.map((item) => html`<tr key=${keyOf(item)}>${columns.map(([, cell, kind], at) => html`<td key=${at} class=${kind ?? ""} data-label=${columns[at][0]}>${cell(item)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}
