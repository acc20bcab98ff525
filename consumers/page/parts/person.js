// The field in which an operator names another person.
import { html, useState } from "../html.js";
import { t } from "../i18n.js";
import { firstPages, useLoad } from "../load.js";

/** Lets operators choose whose data is shown. It suggests users who have used models. @param {{user?: string, onChoose: (user: string) => void}} props */
export function Person({ user, onChoose }) {
  const [typed, setTyped] = useState(user ?? "");
  const [used, setUsed] = useState(false);
  const { value: people } = useLoad((signal) => (used ? firstPages("/api/operations/usage", 5, signal, { by: "user" }) : Promise.resolve({ items: [], more: false })), [used]);
  const choose = (/** @type {any} */ event) => { event.preventDefault(); if (typed.trim() !== (user ?? "")) onChoose(typed.trim()); };
  return html`<form class="row person" onSubmit=${choose}>
    <input list="people" dir="auto" value=${typed} onFocus=${() => setUsed(true)} placeholder=${t("memories.person")} aria-label=${t("memories.person")} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} onChange=${choose} />
    <datalist id="people">${(people?.items ?? []).map((/** @type {any} */ row) => row.key && html`<option key=${row.key} value=${row.key} />`)}</datalist></form>`;
}
