// Formats numbers and times for people.
import { t } from "../i18n.js";
import { language } from "../session.js";

/** @param {number | null | undefined} value @param {number} [digits] */
export const number = (value, digits = 0) =>
  value === null || value === undefined ? "–" : value.toLocaleString(language.get(), { maximumFractionDigits: digits, minimumFractionDigits: digits });

/** Returns a short form, such as 1.2K for 1,234. @param {number | null | undefined} value */
export const short = (value) =>
  value === null || value === undefined ? "–" : value.toLocaleString(language.get() === "zh" ? "en" : language.get(), { notation: "compact", maximumFractionDigits: 1 });

/** @param {number} share 0 to 1 */
export const percent = (share) => share.toLocaleString(language.get(), { style: "percent", maximumFractionDigits: 0 });

/** @param {number | null | undefined} usd @returns {string} */
export const cost = (usd) =>
  usd === null || usd === undefined ? "–" : usd > 0 && usd < 0.0001 ? `<${cost(0.0001)}` : usd.toLocaleString(language.get(), { style: "currency", currency: "USD", currencyDisplay: "narrowSymbol", maximumFractionDigits: usd < 1 ? 4 : 2 });

/** Returns "840 ms", "12.3 sec" or "2 min 5 sec". @param {number} milliseconds */
export function duration(milliseconds) {
  const unit = (/** @type {number} */ value, /** @type {string} */ name, digits = 0) => value.toLocaleString(language.get(), { style: "unit", unit: name, unitDisplay: "short", maximumFractionDigits: digits });
  if (milliseconds < 1000) return unit(milliseconds, "millisecond");
  if (milliseconds < 60_000) return unit(milliseconds / 1000, "second", 1);
  return `${unit(Math.floor(milliseconds / 60_000), "minute")} ${unit(Math.round((milliseconds % 60_000) / 1000), "second")}`;
}

/** Returns true if the time is unknown: imported turns without a time are dated from 2000-01-01 on. @param {string | number | Date} time */
export const undated = (time) => Math.floor((new Date(time).getTime() - Date.UTC(2000, 0, 1)) / 2_592_000_000) === 0;

/** @param {string | number | Date | null | undefined} time */
export const moment = (time) =>
  time && undated(time) ? t("undated") : time ? `${day(time)}${language.get() === "zh" ? "" : ","} ${clock(time)}` : "–";

/** @param {string | number | Date | null | undefined} time */
export const day = (time) => (time && undated(time) ? t("undated") : time ? new Date(time).toLocaleDateString(language.get(), { dateStyle: "medium" }) : "–");

/** Returns "14:05", with seconds "14:05:09"; "" for an unknown time. @param {string | number | Date} time @param {boolean} [seconds] */
export const clock = (time, seconds = false) =>
  undated(time) ? "" : new Date(time).toLocaleTimeString(language.get(), { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined, hourCycle: "h23" });

/** Returns the names as "a, b, and c". @param {string[]} names */
export const listed = (names) => new Intl.ListFormat(language.get()).format(names);

const STEPS = /** @type {[Intl.RelativeTimeFormatUnit, number][]} */ ([["year", 31_536_000], ["month", 2_592_000], ["week", 604_800], ["day", 86_400], ["hour", 3_600], ["minute", 60]]);

/** Returns the time relative to now, such as "3 hr. ago". @param {string | number | Date} time */
export function ago(time) {
  if (undated(time)) return t("undated");
  const seconds = (new Date(time).getTime() - Date.now()) / 1000;
  const format = new Intl.RelativeTimeFormat(language.get(), { numeric: "auto", style: "short" });
  for (const [unit, length] of STEPS) if (Math.abs(seconds) >= length) return format.format(Math.round(seconds / length), unit);
  return format.format(0, "second");
}

/** Returns the beginning of a text on one line. @param {string | null | undefined} text @param {number} [most] */
export function clip(text, most = 200) {
  const line = (text ?? "").slice(0, most * 4).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most)}…` : line;
}
