// The head of a conversation's screens: its name, and a tab for each screen.
import { html } from "../html.js";
import { get, path } from "../api.js";
import { t } from "../i18n.js";
import { useLoad } from "../load.js";
import { href } from "../router.js";
import { store, useStore } from "../store.js";
import { clip } from "./format.js";
import { Icon } from "./icons.js";

/** The number of changes of the open conversation; a new number makes its head be read again. */
export const threadChanged = store(0);

/** @param {{thread: string, tab: string, tabs: Record<string, import("../main.js").Screen>}} props */
export function ThreadHead({ thread, tab, tabs }) {
  const changes = useStore(threadChanged);
  const { value } = useLoad((signal) => get(path`/api/threads/${thread}`, { signal }).catch(() => null), [thread, changes]);
  return html`<header class="thread-head">
    <a class="icon-button" href=${href(["threads"])} aria-label=${t("screens.threads")} title=${t("screens.threads")}><${Icon} name="back" /></a>
    <h1 dir="auto" title=${thread}>${clip(value?.label || t("thread.unnamed"), 120)}</h1>
    <nav class="tabs" aria-label=${t("thread.screens")}>
      ${Object.entries(tabs).map(([name, screen]) => html`<a key=${name} href=${href(["threads", thread, name])} aria-current=${name === tab ? "page" : null}>
        <${Icon} name=${screen.icon} /><span>${t(`screens.${name}`)}</span></a>`)}
    </nav>
  </header>`;
}
