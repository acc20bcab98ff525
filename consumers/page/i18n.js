// Words of the page: t("threads.messages", {n: 3}). Tables: i18n/en.js and i18n/zh.js, one group of words per screen.
import en from "./i18n/en.js";
import zh from "./i18n/zh.js";
import { language } from "./session.js";

const TABLES = { en, zh };
export const LANGUAGES = { en: "English", zh: "中文" };

/**
 * Returns the words of a key in the page's language. Where they depend on a number, they are {one, other} and `n` is the
 * number; "{name}" stands for a value.
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

/** Returns t of a key, or the text itself where the tables have no such key: for codes that the server sends.
 * @param {string} group @param {string} code @returns {string} */
export function named(group, code) {
  const words = found(TABLES[language.get() === "zh" ? "zh" : "en"], `${group}.${code}`);
  return typeof words === "string" ? words : code;
}

/** Returns the name of an agent. Those that the bundled team brings are named in the page's language; the one that answers
 * without a team, which nobody has named, is the assistant.
 * @param {{type: string, name: string}} agent */
export const agentName = ({ type, name }) => (name === found(zh, `access.bundled.${type}`) ? named("access.bundled", type)
  : name === "orchestrator" ? t("chat.assistant") : name);

/** @param {any} value */
const shown = (value) => (typeof value === "number" ? value.toLocaleString(language.get()) : String(value));

/** @param {any} table @param {string} key */
const found = (table, key) => key.split(".").reduce((at, part) => (at && Object.hasOwn(at, part) ? at[part] : undefined), table);
