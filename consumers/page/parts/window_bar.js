// Shows a context window to scale: system prompt, tools, memories, tiers, free space, and the space for the answer.
import { html } from "../html.js";
import { t } from "../i18n.js";
import { Legend, StackedBar } from "./bars.js";
import { number, percent } from "./format.js";

/** Returns the window's parts in the order in which the model reads them. @param {any} context ContextMade of the API */
export function partsOf({ shares, tiers }) {
  const tier = (/** @type {any} */ each) => ({ key: each.tier, kind: each.tier, label: t(`window.tier_${each.tier}`), value: each.tokens,
    title: t("window.tier_title", { name: t(`window.tier_${each.tier}`), tokens: each.tokens, limit: each.limit, n: each.items.length }) });
  const part = (/** @type {string} */ key, /** @type {number} */ value, kind = key) => ({ key, kind, label: t(`window.${key}`), value, title: `${t(`window.${key}`)}: ${number(value)} · ${t(`window.${key}_about`)}` });
  return [
    part("system", shares.system), part("tools", shares.tools), part("memories", shares.memories, "memory"),
    ...tiers.map(tier), part("free", shares.free), part("reserve", shares.reserve), part("safety", shares.safety, "reserve"),
  ].filter((each) => each.value > 0);
}

/** @param {any} context @param {number} count */
export function dropped(context, count) {
  if (!count && !context.remarks.length) return t("window.nothing_dropped");
  return context.remarks.map((/** @type {any} */ each) => `${each.reason} (${number(each.turns.count)})`).join(" · ") || t("window.dropped", { n: count });
}

/** @param {{context: any, active?: string | null, onActive?: (key: string | null) => void, onChoose?: (key: string) => void, compact?: boolean}} props */
export function WindowBar({ context, active, onActive, onChoose, compact = false }) {
  const parts = partsOf(context);
  const { window, free, reserve, safety } = context.shares;
  const used = window - free - reserve - safety;
  return html`<div class="window-bar">
    <p class="row apart"><span class="window-used"><b class="number">${number(used)}</b> <span class="muted">${t("window.of", { n: window })}</span></span>
      <span class="muted number">${percent(used / window)}</span></p>
    <${StackedBar} parts=${parts} total=${window} label=${t("window.label")} thick=${!compact} active=${active} onActive=${onActive} onChoose=${onChoose} />
    <${Legend} parts=${parts} active=${active} onActive=${onActive} />
  </div>`;
}
