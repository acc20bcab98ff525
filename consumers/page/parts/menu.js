// The menu at the side: screens, language, light or dark theme, and the signed-in user.
import { html } from "../html.js";
import { LANGUAGES, t } from "../i18n.js";
import { href } from "../router.js";
import { isDark, language, may, session, signOut, theme } from "../session.js";
import { IconButton } from "./common.js";
import { Icon } from "./icons.js";

export function Preferences() {
  const other = language.get() === "zh" ? "en" : "zh";
  return html`<div class="preferences">
    <button type="button" class="button small quiet" lang=${other} onClick=${() => language.set(other)}>${LANGUAGES[other]}</button>
    <${IconButton} label=${t(isDark() ? "light" : "dark")} icon=${isDark() ? "sun" : "moon"} onClick=${() => theme.set(isDark() ? "light" : "dark")} />
  </div>`;
}

/** @param {{screens: Record<string, import("../main.js").Screen>, current: string, open: boolean, onClose: () => void}} props */
export function Menu({ screens, current, open, onClose }) {
  const caller = /** @type {import("../session.js").Session} */ (session.get()).caller;
  return html`<div class="menu-shade ${open ? "open" : ""}" onClick=${onClose} />
  <nav class="menu ${open ? "open" : ""}" aria-label=${t("menu")} onKeyDown=${(/** @type {any} */ event) => event.key === "Escape" && onClose()}>
    <a class="brand" href=${href(["threads"])}><img src="icon.svg" alt="" width="22" height="22" /><b>turnlog</b></a>
    <ul>
      ${Object.entries(screens).filter(([, screen]) => !screen.needs || may(screen.needs)).map(([name, screen]) => html`<li key=${name}>
        <a href=${href([name])} aria-current=${name === current ? "page" : null}><${Icon} name=${screen.icon} />${t(`screens.${name}`)}</a>
      </li>`)}
    </ul>
    <footer>
      <div class="who"><span class="avatar" aria-hidden="true">${[...caller.user][0]?.toUpperCase()}</span>
        <span class="who-words"><b dir="auto">${caller.user}</b><span class="muted">${caller.tenant}${caller.role === "user" ? "" : ` · ${caller.role}`}</span></span>
        <${IconButton} label=${t("sign_out")} icon="leave" onClick=${() => signOut()} /></div>
      <${Preferences} />
    </footer>
  </nav>`;
}
