// Says in the page's language why a search or a context was limited; the server gives its reasons in English.
import { html } from "../html.js";
import { t } from "../i18n.js";
import { language } from "../session.js";
import { Badge } from "./common.js";

/** Returns what was missing, as keys of the group `degraded` of texts. @param {string} reason the server's reasons, joined by "; "
 * @returns {string[]} */
export function missing(reason) {
  const vectors = /^(keyword search|words, entities and dates) only: /.test(reason)
    && (/vectors were left out/.test(reason) ? "unused" : /has a vector of .* yet/.test(reason) ? "none_yet" : /was not there after/.test(reason) ? "slow" : "failed");
  const others = [/not reranked: /.test(reason) && "not_reranked", /: being rebuilt/.test(reason) && "rebuilt"].filter(Boolean);
  return /** @type {string[]} */ (vectors || !others.length ? [vectors || "failed", ...others] : others);
}

/** @param {{reason: string | null | undefined}} props */
export function Degraded({ reason }) {
  return reason ? missing(reason).map((each) => html`<${Badge} key=${each} tone=${each === "unused" ? "quiet" : "warn"} title=${language.get() === "zh" ? undefined : reason}>${t(`degraded.${each}`)}<//>`) : null;
}
