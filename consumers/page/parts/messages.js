// Shows the messages of a context as the model gets them, each with its part of the window.
import { html, useEffect, useRef, useState } from "../html.js";
import { named, t } from "../i18n.js";
import { href } from "../router.js";
import { clip, number } from "./format.js";

const AT_ONCE = 60; // messages drawn at first; "more" draws four times as many

/** @param {any} message */
export function textOf(message) {
  const content = typeof message.content === "string" ? message.content
    : (message.content ?? []).map((/** @type {any} */ part) => part.text ?? `[${part.type}]`).join("\n");
  const calls = (message.tool_calls ?? []).map((/** @type {any} */ call) => `→ ${call.function.name}(${call.function.arguments})`);
  return [content, ...calls].filter(Boolean).join("\n");
}

/** Shows the messages. Arrow keys move between them, only one is a tab stop, and Enter chooses its part of the window.
 * @param {{thread: string, messages: any[], shares: {part: string, seq: number | null, tokens: number}[],
 *   active: string | null, onActive: (part: string | null) => void, onChoose: (part: string) => void}} props */
export function Messages({ thread, messages, shares, active, onActive, onChoose }) {
  const [count, setCount] = useState(AT_ONCE);
  const [open, setOpen] = useState(/** @type {number | null} */ (null));
  const [stop, setStop] = useState(0);
  const list = useRef(/** @type {any} */ (null));
  useEffect(() => { setCount(AT_ONCE); setOpen(null); setStop(0); }, [messages]);
  useEffect(() => {
    const row = active && !list.current.matches(":hover, :focus-within") && list.current.querySelector(`[data-part="${active}"]`);
    if (row) list.current.scrollTo({ top: row.offsetTop - list.current.offsetTop - 8 });
  }, [active]);
  // The last 10 messages are always drawn, because the question is among them; those before them on request.
  const hidden = Math.max(0, messages.length - count - 10);
  const rows = messages.map((message, at) => ({ message, at })).filter(({ at }) => at < count || at >= messages.length - 10);
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const row = /** @type {HTMLElement} */ (event.target).closest(".message");
    if (event.key === "Enter" && row === event.target) onChoose(shares[stop].part);
    else if (row && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      const all = [...list.current.querySelectorAll(".message")];
      all[all.indexOf(row) + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
    } else return;
    event.preventDefault();
  };
  // "Move" and not "enter": when an arrow key scrolls the list, another message comes under a pointer at rest and is entered.
  const onMouseLeave = () => onActive(list.current.querySelector(".message:focus-within")?.dataset.part ?? null);
  return html`<ol class="messages" ref=${list} aria-label=${t("context.messages")} onMouseLeave=${onMouseLeave} onKeyDown=${onKeyDown} onFocusOut=${() => onActive(null)}>
    ${rows.map(({ message, at }) => {
      const share = shares[at];
      const text = textOf(message);
      return html`${hidden > 0 && at === messages.length - 10 && html`<li key="more" class="messages-more"><button class="button small" onClick=${() => setCount(count + AT_ONCE * 4)}>${t("context.more", { n: hidden })}</button></li>`}
        <li key=${at} data-part=${share.part} tabindex=${at === stop ? 0 : -1} class="message ${active && active !== share.part ? "dim" : ""}" onMouseMove=${() => onActive(share.part)}
          onFocusIn=${() => { setStop(at); onActive(share.part); }}>
          <i class="message-part bar-${share.part === "memories" ? "memory" : share.part}" title=${named("window", share.part.length === 1 || share.part === "all" ? `tier_${share.part}` : share.part)} />
          <div class="message-head"><b>${named("chat.roles", message.role)}</b>${message.name && html`<span class="muted small" dir="auto">${message.name}</span>`}
            ${share.seq !== null && share.part !== "1" && html`<a class="faint small number" href=${href(["threads", thread], { seq: share.seq })}>#${share.seq}</a>`}
            <span class="muted small number message-tokens">${t("threads.tokens", { n: number(share.tokens) })}</span></div>
          ${text.length > 240
            ? html`<button class="message-text" dir="auto" aria-expanded=${open === at} onClick=${() => setOpen(open === at ? null : at)}>${open === at ? text : clip(text, 240)}</button>`
            : html`<p class="message-text" dir="auto">${text}</p>`}
        </li>`;
    })}
  </ol>`;
}
