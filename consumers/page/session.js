// The signed-in session, and the page's theme and language. They are kept only in session storage, which ends with the tab.
import { store } from "./store.js";

/** @typedef {{tenant: string, user: string, role: string, scopes: string[], expires_at: string | null}} Caller */
/** @typedef {{token: string, caller: Caller}} Session */

const KEY = "turnlog.session";

/** @type {import("./store.js").Store<Session | null>} */
export const session = store(stored(KEY, null));
/** @type {import("./store.js").Store<string | null>} */
export const signedOutBecause = store(/** @type {string | null} */ (null));
export const theme = store(stored("turnlog.theme", "system"));
export const language = store(stored("turnlog.language", navigator.language.startsWith("zh") ? "zh" : "en"));

session.subscribe((value) => keep(KEY, value));
theme.subscribe((value) => keep("turnlog.theme", value));
language.subscribe((value) => keep("turnlog.language", value));

const dark = matchMedia("(prefers-color-scheme: dark)");
export const isDark = () => (theme.get() === "system" ? dark.matches : theme.get() === "dark");

function show() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  document.documentElement.lang = language.get();
}
theme.subscribe(show);
language.subscribe(show);
dark.addEventListener("change", show);
show();

/** @param {string | null} reason */
export function signOut(reason = null) {
  signedOutBecause.set(reason);
  session.set(null);
}

/**
 * @param {string} scope
 * @returns {boolean}
 */
export const may = (scope) => session.get()?.caller.scopes.includes(scope) ?? false;

/** @param {string} key @param {any} otherwise @returns {any} */
function stored(key, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(key) ?? "null") ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** @param {string} key @param {any} value */
function keep(key, value) {
  if (value === null) sessionStorage.removeItem(key);
  else sessionStorage.setItem(key, JSON.stringify(value));
}
