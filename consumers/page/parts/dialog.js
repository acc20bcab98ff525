// Dialogs that use the browser's <dialog>, which keeps the focus inside and closes on Escape.
import { html, useEffect, useId, useRef } from "../html.js";
import { t } from "../i18n.js";
import { store, useStore } from "../store.js";
import { IconButton } from "./common.js";

/** @param {{title: string, onClose: () => void, wide?: boolean, children?: any}} props */
export function Dialog({ title, onClose, wide = false, children }) {
  const element = useRef(/** @type {any} */ (null));
  const id = useId();
  useEffect(() => {
    const opener = /** @type {any} */ (document.activeElement);
    if (!element.current.open) element.current.showModal();
    return () => opener?.isConnected && opener.focus();
  }, []);
  const outside = (/** @type {any} */ event) => event.target === element.current && onClose();
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${(/** @type {any} */ event) => { event.preventDefault(); onClose(); }} onMouseDown=${outside}>
    <div class="dialog-inner">
      <header class="dialog-head"><h2 id=${id}>${title}</h2><${IconButton} label=${t("close")} icon="close" onClick=${onClose} /></header>
      ${children}
    </div>
  </dialog>`;
}

/** @typedef {{title: string, text?: string, value?: string, label?: string, multiline?: boolean, action: string, danger?: boolean, answer: (value: string | null) => void}} Question */
const asked = store(/** @type {Question | null} */ (null));

/** Asks for confirmation; returns false if the dialog was cancelled. @param {{title: string, text?: string, action: string, danger?: boolean}} question @returns {Promise<boolean>} */
export const confirm = async (question) => (await prompt(question)) !== null;

/** Asks for a text; returns null if the dialog was cancelled. @param {Omit<Question, "answer">} question @returns {Promise<string | null>} */
export const prompt = (question) => new Promise((answer) => asked.set({ ...question, answer }));

/** Shows the dialogs of `confirm` and `prompt`. */
export function Questions() {
  const question = useStore(asked);
  const field = useRef(/** @type {any} */ (null));
  if (!question) return null;
  const close = (/** @type {string | null} */ value) => {
    asked.set(null);
    question.answer(value);
  };
  const send = (/** @type {any} */ event) => {
    event.preventDefault();
    close(field.current?.value ?? "");
  };
  return html`<${Dialog} title=${question.title} onClose=${() => close(null)}>
    <form class="stack" onSubmit=${send}>
      ${question.text && html`<p>${question.text}</p>`}
      ${question.label && html`<label class="field"><span class="field-label">${question.label}</span>
        ${question.multiline
          ? html`<textarea ref=${field} rows="4" required defaultValue=${question.value} />`
          : html`<input ref=${field} required defaultValue=${question.value} />`}</label>`}
      <div class="actions"><button type="button" class="button" onClick=${() => close(null)}>${t("cancel")}</button>
        <button class="button ${question.danger ? "danger" : "primary"}">${question.action}</button></div>
    </form>
  <//>`;
}
