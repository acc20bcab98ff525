// Short notes at the page's edge, which may have a button such as "undo".
import { html } from "../html.js";
import { t } from "../i18n.js";
import { store, useStore } from "../store.js";
import { Icon } from "./icons.js";

/** @typedef {{id: number, text: string, tone?: string, action?: string, onAction?: () => void, onEnd?: () => void, timer: any}} Toast */

const shown = store(/** @type {Toast[]} */ ([]));
let last = 0;

/**
 * Shows a note. action, onAction: the text and effect of its button. onEnd: called if the note ends without the button.
 * @param {string} text @param {{tone?: "bad", action?: string, onAction?: () => void, onEnd?: () => void, seconds?: number}} [options]
 */
export function toast(text, { tone, action, onAction, onEnd, seconds = tone === "bad" ? 8 : 4 } = {}) {
  const id = ++last;
  const timer = setTimeout(() => end(id, true), seconds * 1000);
  shown.set([...shown.get(), { id, text, tone, action, onAction, onEnd, timer }]);
}

/**
 * Calls `act` after some seconds, or at once when the page is left. Until then, a note offers to undo it, which calls `undo`.
 * @param {string} text @param {() => void} act @param {() => void} undo @param {number} [seconds]
 */
export function undoable(text, act, undo, seconds = 6) {
  const actNow = () => {
    removeEventListener("pagehide", actNow);
    act();
  };
  addEventListener("pagehide", actNow);
  const onAction = () => {
    removeEventListener("pagehide", actNow);
    undo();
  };
  toast(text, { action: t("undo"), onAction, onEnd: actNow, seconds });
}

/** @param {number} id @param {boolean} expired */
function end(id, expired) {
  const ended = shown.get().find((each) => each.id === id);
  if (!ended) return;
  clearTimeout(ended.timer);
  shown.set(shown.get().filter((each) => each.id !== id));
  (expired ? ended.onEnd : ended.onAction)?.();
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">
    ${useStore(shown).map(({ id, text, tone, action, onEnd }) => html`<div key=${id} class="toast ${tone ?? ""}">
      <span>${text}</span>
      ${action && html`<button class="button small" onClick=${() => end(id, false)}>${action}</button>`}
      <button class="icon-button" aria-label=${t("close")} onClick=${() => end(id, Boolean(onEnd))}><${Icon} name="close" /></button>
    </div>`)}
  </div>`;
}
