// Shows the turns of a conversation: texts, thoughts, and tool calls as cards with their results.
import { html } from "../html.js";
import { named, t } from "../i18n.js";
import { useAgentNames } from "../load.js";
import { Badge, IconButton, Time } from "./common.js";
import { clip, clock, day, moment } from "./format.js";
import { Icon } from "./icons.js";
import { Markdown } from "./markdown.js";

/** @typedef {{id: string, name: string, args: any, result?: string, failed?: boolean, milliseconds?: number}} Call */
/** @typedef {{kind: "text" | "thinking" | "call" | "other", text?: string, call?: Call}} Block */
/** @typedef {{key: string, seq: number | null, eventId?: string, role: string, name?: string | null, agent?: string | null, model?: string | null,
 *   origin?: string, time: string, blocks: Block[], live?: boolean}} Spoken */

/** Returns the API's turns in the form in which they are shown: results are part of their calls, and an answer's calls and text are one turn. @param {any[]} turns @returns {Spoken[]} */
export function spoken(turns) {
  /** @type {Map<string, Call>} */
  const calls = new Map();
  /** @type {Spoken[]} */
  const made = [];
  for (const turn of turns) {
    const blocks = blocksOf(turn);
    for (const { call } of blocks) if (call) calls.set(call.id, call);
    const rest = turn.role === "tool" ? blocks.filter((block) => !joins(block, turn, calls)) : blocks;
    if (!rest.length) continue;
    const before = made.at(-1);
    const goesOn = before && before.role === "assistant" && turn.role === "assistant" && before.agent === turn.agent && before.blocks.every((block) => block.kind !== "text");
    if (goesOn) {
      made[made.length - 1] = { ...before, key: turn.event_id, seq: turn.seq, eventId: turn.event_id, time: turn.time, blocks: [...before.blocks, ...rest] };
    } else {
      const { seq, event_id: eventId, role, name, agent, model, origin, time } = turn;
      made.push({ key: eventId, seq, eventId, role, name, agent, model, origin, time, blocks: rest });
    }
  }
  return made;
}

/** @param {any} turn @returns {Block[]} */
function blocksOf(turn) {
  const content = typeof turn.content === "string" ? [{ type: "text", text: turn.content }] : turn.content ?? [];
  const blocks = content.map((/** @type {any} */ block) => {
    if (block.type === "text") return { kind: "text", text: String(block.text ?? "") };
    if (block.type === "thinking") return { kind: "thinking", text: String(block.thinking ?? "") };
    if (block.type === "tool_use") return { kind: "call", call: { id: block.id, name: block.name, args: block.input } };
    if (block.type === "tool_result") return { kind: "other", text: textOf(block.content) };
    return { kind: "other", text: JSON.stringify(block, null, 2) };
  });
  for (const call of turn.tool_calls ?? []) blocks.push({ kind: "call", call: { id: call.id, name: call.name ?? call.function?.name, args: call.arguments ?? call.function?.arguments } });
  return blocks.filter((/** @type {Block} */ block) => block.kind === "call" || block.text?.trim());
}

/** @param {any} content */
const textOf = (content) => (typeof content === "string" ? content : (content ?? []).map((/** @type {any} */ part) => part.text ?? JSON.stringify(part)).join("\n"));

/** @param {Block} block @param {any} turn @param {Map<string, Call>} calls */
function joins(block, turn, calls) {
  const ids = [turn.tool_call_id, ...(Array.isArray(turn.content) ? turn.content.map((/** @type {any} */ each) => each.tool_use_id) : [])];
  const call = ids.map((id) => calls.get(id)).find((each) => each && each.result === undefined);
  if (call) call.result = block.text ?? "";
  return Boolean(call);
}

/** @param {any} value */
function pretty(value) {
  try {
    return JSON.stringify(typeof value === "string" ? JSON.parse(value) : value, null, 2);
  } catch {
    return String(value);
  }
}

/** @param {{call: Call}} props */
export function CallCard({ call }) {
  const running = call.result === undefined;
  const line = clip(typeof call.args === "string" ? call.args : JSON.stringify(call.args), 90);
  return html`<details class="call ${call.failed ? "failed" : ""}">
    <summary><${Icon} name="tool" /><b>${call.name}</b><span class="clip muted mono grow">${line}</span>
      ${call.failed ? html`<${Badge} tone="bad">${t("chat.tool_failed")}<//>` : running ? html`<span class="dots" role="status" aria-label=${t("chat.tool_runs")}><i /><i /><i /></span>`
        : html`<span class="muted small number">${call.milliseconds !== undefined ? `${call.milliseconds} ms` : ""}</span><${Icon} name="check" />`}</summary>
    <div class="call-inner"><h4>${t("chat.arguments")}</h4><pre tabindex="0">${pretty(call.args)}</pre>
      ${!running && html`<h4>${t("chat.result")}</h4><pre tabindex="0">${pretty(call.result)}</pre>`}</div>
  </details>`;
}

/** Shows one turn. onSeen: called to show what the model saw for it. @param {{turn: Spoken, agentOf: (type: string) => string, marked?: boolean, onSeen?: (turn: Spoken) => void, seen?: boolean, onRedact?: (turn: Spoken) => void}} props */
function Turn({ turn, agentOf, marked, onSeen, seen, onRedact }) {
  const mine = turn.role === "user";
  const speaker = turn.name || (mine ? t("chat.you") : turn.role === "assistant" ? t("chat.assistant") : named("chat.roles", turn.role));
  const agent = turn.agent && agentOf(turn.agent);
  return html`<article class="turn ${turn.role} ${marked ? "marked" : ""}" data-seq=${turn.seq}>
    <header><b dir="auto">${speaker}</b>
      ${agent && agent !== speaker && html`<${Badge} tone="accent" title=${t("chat.agent")}>${agent}<//>`}
      ${mine && turn.origin && turn.origin !== "person" && html`<${Badge} title=${t("chat.origin_about")}>${named("chat.origins", turn.origin)}<//>`}
      <span class="turn-time faint small"><${Time} time=${turn.time}>${clock(turn.time)}<//></span>
      ${onSeen && turn.role === "assistant" && !turn.live && html`<button class="button small quiet turn-seen" aria-pressed=${seen} onClick=${() => onSeen(turn)}><${Icon} name="eye" />${t("chat.saw")}</button>`}
      ${onRedact && turn.seq !== null && html`<span class="turn-redact"><${IconButton} label=${t("redact.title")} icon="trash" onClick=${() => onRedact(turn)} /></span>`}
    </header>
    ${turn.blocks.map((block, at) => block.kind === "call" ? html`<${CallCard} key=${block.call?.id ?? at} call=${block.call} />`
      : block.kind === "thinking" ? html`<details key=${at} class="thinking"><summary>${t("chat.thinking")}</summary><p dir="auto">${block.text}</p></details>`
      : block.kind === "other" ? html`<pre key=${at} class="other" tabindex="0">${block.text}</pre>`
      : mine ? html`<p key=${at} class="said" dir="auto">${block.text}</p>` : html`<${Markdown} key=${at} text=${block.text} />`)}
    ${turn.live && html`<span class="cursor" aria-hidden="true" />`}
  </article>`;
}

/** Shows turns, with a line for each new day. @param {{turns: Spoken[], markedSeq?: number | null, onSeen?: (turn: Spoken) => void, seenKey?: string | null, onRedact?: (turn: Spoken) => void}} props */
export function Turns({ turns, markedSeq, onSeen, seenKey, onRedact }) {
  const agentOf = useAgentNames();
  let last = "";
  return turns.map((turn) => {
    const date = day(turn.time);
    const isNew = date !== last;
    last = date;
    return html`<div key=${turn.key}>${isNew && html`<p class="day" title=${moment(turn.time)}><span>${date}</span></p>`}
      <${Turn} turn=${turn} agentOf=${agentOf} marked=${markedSeq !== null && turn.seq === markedSeq} onSeen=${onSeen} seen=${seenKey === turn.key} onRedact=${onRedact} /></div>`;
  });
}
