// Compares what two answers were made from, side by side.
import { html, useMemo, useState } from "../html.js";
import { get, path } from "../api.js";
import { named, t } from "../i18n.js";
import { useLoad } from "../load.js";
import { StackedBar } from "./bars.js";
import { Badge, Failure, Field, Loading } from "./common.js";
import { clip, moment, number } from "./format.js";
import { Table } from "./list.js";
import { textOf } from "./messages.js";
import { partsOf } from "./window_bar.js";

/** @param {{thread: string, receipts: any[], first?: string, second?: string}} props first, second: the sequences up to which the contexts of the two answers were read */
export function Compare({ thread, receipts, first, second }) {
  const [chosen, setChosen] = useState([Number(first) || receipts.at(-2).receipt.as_of_seq, Number(second) || receipts.at(-1).receipt.as_of_seq]);
  const { value, error, loading } = useLoad((signal) => Promise.all(chosen.map(async (seq) => {
    const { receipt } = receipts.find((each) => each.receipt.as_of_seq === seq) ?? receipts.at(-1);
    const [context, ...memories] = await Promise.all([get(path`/api/threads/${thread}/context`, { query: { as_of: seq }, signal }),
      ...receipt.memories.map((/** @type {string} */ id) => get(path`/api/memories/${id}`, { signal }).catch(() => ({ id, content: t("seen.forgotten") })))]);
    return { receipt, context, memories };
  })), [thread, ...chosen]);
  const options = useMemo(() => [...receipts].reverse().map((each) => [each.receipt.as_of_seq, `#${each.receipt.as_of_seq} · ${moment(each.time)} · ${each.receipt.model}`]), [receipts]);
  const select = (/** @type {number} */ side) => html`<${Field} label=${t(side ? "compare.second" : "compare.first")}>
    <select value=${chosen[side]} onChange=${(/** @type {any} */ event) => setChosen(chosen.map((seq, at) => (at === side ? Number(event.target.value) : seq)))}>
      ${options.map(([seq, words]) => html`<option key=${seq} value=${seq}>${words}</option>`)}
    </select><//>`;
  return html`<div class="context">
    <div class="card compare-choice">${select(0)}${select(1)}</div>
    <${Failure} error=${error} />
    ${!value ? !error && html`<${Loading} />` : html`<div class="stack ${loading ? "stale" : ""}"><${Differences} sides=${value} /></div>`}
  </div>`;
}

const PLACES = ["system", "tools", "memories", "tiers", "free", "reserve", "safety"]; // in the order of the window

/** @param {{sides: any[]}} props */
function Differences({ sides }) {
  const parts = sides.map(({ context }) => new Map(partsOf(context).map((part) => [part.key, part])));
  const place = (/** @type {string} */ key) => PLACES.indexOf(PLACES.includes(key) ? key : "tiers");
  const keys = [...new Set(parts.flatMap((side) => [...side.keys()]))].sort((one, other) => place(one) - place(other));
  const whole = Math.max(...sides.map(({ context }) => context.shares.window));
  const rows = keys.map((key) => ({ key, part: parts[0].get(key) ?? parts[1].get(key), values: parts.map((side) => side.get(key)?.value ?? 0) }));
  const told = sides.map(({ context }) => new Set(context.messages.map(textOf)));
  const only = sides.map(({ context }, at) => context.messages.filter((/** @type {any} */ message) => !told[1 - at].has(textOf(message))));
  const memories = sides.map(({ memories }, at) => memories.filter((/** @type {any} */ memory) => !sides[1 - at].receipt.memories.includes(memory.id)));
  return html`
    <div class="card stack">
      ${sides.map(({ receipt, context }, at) => html`<div key=${at} class="compare-bar"><p class="row"><b>${t(at ? "compare.second" : "compare.first")}</b><${Badge}>${receipt.model}<//>
        ${context.matches && html`<${Badge} tone="good">${t("seen.matches")}<//>`}</p>
        <${StackedBar} parts=${partsOf(context)} total=${whole} label=${t("window.label")} /></div>`)}
      <${Table} label=${t("compare.parts")} items=${rows} keyOf=${(/** @type {any} */ row) => row.key} columns=${[
        [t("compare.part"), (/** @type {any} */ row) => html`<span class="row"><i class="swatch bar-${row.part.kind}" />${row.part.label}</span>`],
        [t("compare.first"), (/** @type {any} */ row) => number(row.values[0]), "number"],
        [t("compare.second"), (/** @type {any} */ row) => number(row.values[1]), "number"],
        [t("compare.difference"), (/** @type {any} */ row) => html`<span class=${row.values[1] === row.values[0] ? "faint" : ""}>${signed(row.values[1] - row.values[0])}</span>`, "number"],
      ]} />
    </div>
    <div class="compare-sides">
      ${sides.map((_, at) => html`<section key=${at} class="card stack"><h2>${t(at ? "compare.only_second" : "compare.only_first")}</h2>
        ${memories[at].length > 0 && html`<div><h3>${t("window.memories")}</h3><ul class="plain-list">${memories[at].map((/** @type {any} */ memory) => html`<li key=${memory.id} dir="auto">${clip(memory.content, 200)}</li>`)}</ul></div>`}
        <div><h3>${t("context.messages")} <span class="muted number">${number(only[at].length)}</span></h3>
          ${only[at].length ? html`<ul class="plain-list">${only[at].slice(-12).map((/** @type {any} */ message, /** @type {number} */ n) => html`<li key=${n} dir="auto"><span class="muted">${named("chat.roles", message.role)}</span> ${clip(textOf(message), 200)}</li>`)}</ul>`
            : html`<p class="muted">${t("compare.none")}</p>`}</div>
      </section>`)}
    </div>`;
}

/** @param {number} difference */
const signed = (difference) => (difference > 0 ? `+${number(difference)}` : difference < 0 ? `−${number(-difference)}` : "0");
