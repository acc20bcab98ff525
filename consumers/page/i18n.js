// Words of the page: t("threads.messages", {n: 3}). Tables: i18n/en.js and i18n/zh.js, one group of words per screen.
import en from "./i18n/en.js";
import zh from "./i18n/zh.js";
import { language } from "./session.js";

const TABLES = { en, zh };
export const LANGUAGES = { en: "English", zh: "中文" };

/**
 * Returns the text for a key in the page's language. "{name}" in the text is replaced by the value with that name. A text with
 * several plural forms is an object {one, other}; the value `n` chooses the form.
 * @param {string} key @param {Record<string, any>} [values] @returns {string}
 */
export function t(key, values = {}) {
  const chosen = language.get() === "zh" ? "zh" : "en";
  let words = found(TABLES[chosen], key) ?? found(en, key) ?? key;
  if (typeof words === "object") {
    const form = new Intl.PluralRules(chosen).select(values.n);
    words = /** @type {any} */ (words)[form] ?? /** @type {any} */ (words).other ?? key;
  }
  return String(words).replace(/\{(\w+)\}/g, (whole, name) => (name in values ? shown(values[name]) : whole));
}

/** Returns the text for a code that the server sent; the code itself if the tables have no such key.
 * @param {string} group @param {string} code @returns {string} */
export function named(group, code) {
  const words = found(TABLES[language.get() === "zh" ? "zh" : "en"], `${group}.${code}`);
  return typeof words === "string" ? words : code;
}

/** Returns the name to show for an agent. Agents of the bundled team have names in the page's language; the agent that answers
 * without a team is called "assistant".
 * @param {{type: string, name: string}} agent */
export const agentName = ({ type, name }) => (name === found(zh, `access.bundled.${type}`) ? named("access.bundled", type)
  : name === "orchestrator" ? t("chat.assistant") : name);

/** @param {any} value */
const shown = (value) => (typeof value === "number" ? value.toLocaleString(language.get()) : String(value));

/** @param {any} table @param {string} key */
const found = (table, key) => key.split(".").reduce((at, part) => (at && Object.hasOwn(at, part) ? at[part] : undefined), table);
