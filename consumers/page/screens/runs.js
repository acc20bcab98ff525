// The screen of agents' runs: the list, and one run on a time axis with its plan, tools, delegations, tokens and cost.
import { html, useState } from "../html.js";
import { get, path } from "../api.js";
import { named, t } from "../i18n.js";
import { useAgentNames, useEvery, useLoad, useMarks, usePages } from "../load.js";
import { href } from "../router.js";
import { Legend, StackedBar } from "../parts/bars.js";
import { Badge, Code, Empty, Failure, Head, Loading, Tile, Time } from "../parts/common.js";
import { ago, clip, cost, duration, moment, number, short } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { Table, WindowedList } from "../parts/list.js";

const ROW = 60;
const LOOK_AGAIN_S = 10;
const COLOURS = ["3", "2", "1", "tools", "memory", "system"];
const TONES = /** @type {Record<string, any>} */ ({ solved: "good", failed: "bad", running: "accent" });
const ICONS = /** @type {Record<string, import("../parts/icons.js").IconName>} */ ({ plan: "summary", call: "tool", delegation: "next", end: "check" });

/** Returns the status of a run; "stopped" if the person stopped the answer. @param {any} run */
const statusOf = (run) => (run.code === "answer-cancelled" ? "stopped" : run.status);

/** @param {{path: string[], query: Record<string, string>}} props */
export default function Runs({ path: [, run], query }) {
  return run ? html`<${Run} key=${run} id=${run} />` : html`<${List} thread=${query.thread} />`;
}

/** @param {{thread?: string}} props */
function List({ thread }) {
  const list = usePages("/api/runs", { limit: 50, thread });
  useEvery(() => list.items.length <= 50 && list.reload(), LOOK_AGAIN_S, [list.items.length, thread]);
  const marks = useMarks(list.items.map((each) => each.thread));
  const agentOf = useAgentNames();
  const most = Math.max(1, ...list.items.map((/** @type {any} */ run) => run.took_ms ?? 0));
  const row = (/** @type {any} */ run) => html`<a class="run-row" href=${href(["runs", run.run_id])}>
    <${Badge} tone=${TONES[statusOf(run)]}>${named("runs.status", statusOf(run))}<//>
    <span class="run-words"><b class="clip" dir="auto">${clip(marks[run.thread]?.label || t("thread.unnamed"), 100)}</b><span class="clip muted small" dir="auto">${agentOf(run.agent)}</span></span>
    <span class="run-length"><span class="meter-track"><span class="meter-fill bar-3" style=${{ width: `${(100 * (run.took_ms ?? 0)) / most}%` }} /></span>
      <span class="number small">${run.took_ms === null ? "…" : duration(run.took_ms)}</span></span>
    <span class="run-number number" title=${t("runs.tokens_in_out", { in: run.tokens_in, out: run.tokens_out })}>${t("threads.tokens", { n: short(run.tokens_in + run.tokens_out) })}</span>
    <span class="run-number number">${priced(run)}</span>
    <span class="run-time muted small"><${Time} time=${run.started_at}>${ago(run.started_at)}<//></span>
  </a>`;
  return html`<section class="screen full">
    <${Head} title=${t("screens.runs")} about=${t("runs.about")} />
    ${thread && html`<div class="row"><${Badge} tone="accent">${t("recall.in_thread", { thread: clip(thread, 40) })}<//><a href=${href(["runs"])}>${t("runs.every")}</a></div>`}
    <${Failure} error=${list.error} retry=${list.reload} />
    ${list.loading && !list.items.length ? html`<${Loading} lines=${8} />`
      : list.items.length ? html`<${WindowedList} className="card-list" items=${list.items} height=${ROW} row=${row} keyOf=${(/** @type {any} */ each) => each.run_id}
          label=${t("screens.runs")} onEnd=${list.more} />`
      : !list.error && html`<${Empty} icon="runs" title=${t("runs.none")}>${t("runs.none_about")}<//>`}
  </section>`;
}

/** @param {{id: string}} props */
function Run({ id }) {
  const { value, error, reload } = useLoad((signal) => get(path`/api/runs/${id}`, { signal }), [id]);
  useEvery(() => value?.run.status === "running" && reload(), 2, [value]);
  const agentOf = useAgentNames();
  if (error && !value) return html`<div class="screen"><${Failure} error=${error} retry=${reload} /></div>`;
  if (!value) return html`<div class="screen"><${Loading} lines=${8} /></div>`;
  const { run, steps } = value;
  const agents = [...new Set(/** @type {string[]} */ (steps.map((/** @type {any} */ step) => step.agent)))];
  const colourOf = (/** @type {string} */ agent) => COLOURS[agents.indexOf(agent) % COLOURS.length];
  const shares = agents.map((agent) => {
    const own = steps.filter((/** @type {any} */ step) => step.agent === agent);
    return { key: agent, label: agentOf(agent), kind: colourOf(agent), value: sum(own, "tokens_in") + sum(own, "tokens_out") };
  });
  const tools = steps.filter((/** @type {any} */ step) => step.kind === "call").length;
  return html`<section class="screen">
    <${Head} title=${html`<a class="icon-button" href=${href(["runs"])} aria-label=${t("runs.every")} title=${t("runs.every")}><${Icon} name="back" /></a>
      ${t("runs.of", { agent: agentOf(run.agent) })} <${Badge} tone=${TONES[statusOf(run)]}>${named("runs.status", statusOf(run))}<//>`} about=${moment(run.started_at)}>
      <a class="button" href=${href(["threads", run.thread])}><${Icon} name="chat" />${t("runs.open_thread")}</a>
    <//>
    ${statusOf(run) === "failed" && html`<${Failure} error=${new Error(t("runs.failed", { reason: named("runs.codes", run.code) }))} />`}
    <div class="tiles">
      <${Tile} label=${t("runs.duration")} value=${run.took_ms === null ? "…" : duration(run.took_ms)} />
      <${Tile} label=${t("runs.tokens_in")} value=${number(run.tokens_in)} />
      <${Tile} label=${t("runs.tokens_out")} value=${number(run.tokens_out)} />
      <${Tile} label=${t("runs.cost")} value=${priced(run)} />
      <${Tile} label=${t("runs.tools")} value=${number(tools)} />
    </div>
    ${shares.some((share) => share.value > 0) && html`<div class="card stack"><h2>${t("runs.by_agent")}</h2>
      <${StackedBar} parts=${shares} label=${t("runs.by_agent")} /><${Legend} parts=${shares} /></div>`}
    <${Axis} run=${run} steps=${steps} colourOf=${colourOf} agentOf=${agentOf} />
  </section>`;
}

/** Shows the steps as bars from their start to their end. @param {{run: any, steps: any[], colourOf: (agent: string) => string, agentOf: (type: string) => string}} props */
function Axis({ run, steps, colourOf, agentOf }) {
  const [open, setOpen] = useState(/** @type {number | null} */ (null));
  const bars = barsOf(run, steps);
  const first = Math.min(Date.parse(run.started_at), ...bars.map((bar) => bar.from));
  const span = Math.max(1, Math.max(...bars.map((bar) => bar.to)) - first);
  const left = (/** @type {number} */ time) => `${Math.min(99.5, (100 * (time - first)) / span)}%`;
  const most = Math.max(0, ...bars.map((bar) => bar.step.depth));
  return html`<section class="card axis" aria-label=${t("runs.steps")}>
    <div class="axis-scale" aria-hidden="true"><span class="axis-name" /><span class="axis-track">${[0, 0.25, 0.5, 0.75, 1].map((at) => html`<span key=${at} class="axis-tick" style=${{ left: `${at * 100}%` }}>${duration(span * at)}</span>`)}</span><span class="axis-facts" /></div>
    <ol>${bars.map(({ step, result, from, to }, at) => {
      const name = step.kind === "delegation" ? t("runs.to", { agent: agentOf(step.name) }) : step.name ?? named("runs.kinds", step.kind);
      const failed = step.is_error || result?.is_error;
      return html`<li key=${step.seq}>
        <button type="button" class="axis-row" aria-expanded=${open === step.seq} onClick=${() => setOpen(open === step.seq ? null : step.seq)}>
          <span class="axis-name" style=${{ paddingInlineStart: `${Math.min(most, step.depth) * 14}px` }}><${Icon} name=${ICONS[step.kind] ?? "events"} /><span class="axis-words"><span class="clip">${name}</span><span class="clip muted small" dir="auto">${agentOf(step.agent)}</span></span></span>
          <span class="axis-track"><span class="axis-bar bar-${failed ? "bad" : colourOf(step.agent)} is-${step.kind}" style=${{ left: left(from), width: `max(4px, ${(100 * (to - from)) / span}%)` }} /></span>
          <span class="axis-facts small muted number">${failed && html`<${Badge} tone="bad">${t("chat.tool_failed")}<//> `}${to > from ? duration(to - from) : ""}${step.tokens_in + step.tokens_out ? html`<br />${t("threads.tokens", { n: short(step.tokens_in + step.tokens_out) })}` : ""}</span>
        </button>
        ${open === step.seq && html`<${Details} step=${step} result=${result} />`}
      </li>`;
    })}</ol>
    ${!bars.length && html`<p class="muted">${t("runs.no_steps")}</p>`}
  </section>`;
}

/** @param {{step: any, result: any}} props */
function Details({ step, result }) {
  return html`<div class="axis-details stack tight">
    ${step.text && html`<${Code} label=${t(step.kind === "call" ? "chat.arguments" : step.kind === "delegation" ? "runs.task" : "runs.text")} text=${pretty(step.text)} />`}
    ${result && html`<${Code} label=${t("chat.result")} text=${pretty(result.text)} />`}
    ${step.calls?.length > 0 && html`<${Table} label=${t("runs.planned")} items=${step.calls} keyOf=${(/** @type {any} */ call) => call.id} columns=${[
      [t("runs.call"), (/** @type {any} */ call) => html`<b>${call.name}</b> <span class="faint mono small">${call.id}</span>`],
      [t("chat.arguments"), (/** @type {any} */ call) => html`<code>${clip(call.arguments, 300)}</code>`],
      [t("runs.after"), (/** @type {any} */ call) => call.after.join(", ") || "–"],
    ]} />`}
    <p class="muted small number">${t("context.seq", { seq: step.seq })} · ${moment(step.at)}${step.tokens_in + step.tokens_out ? ` · ${t("runs.tokens_in_out", { in: step.tokens_in, out: step.tokens_out })} · ${priced(step)}` : ""}</p>
  </div>`;
}

/** Returns a bar for each step; results are part of their calls. @param {any} run @param {any[]} steps
 * @returns {{step: any, result: any, from: number, to: number}[]} */
function barsOf(run, steps) {
  const bars = [];
  const calls = new Map();
  let before = Date.parse(run.started_at);
  for (const step of steps) {
    const at = Date.parse(step.at);
    const call = step.kind === "result" && calls.get(step.call_id);
    if (call) {
      call.result = step;
      call.to = Math.max(at, call.from);
    } else {
      const thought = step.kind === "plan" || step.kind === "end";
      const began = step.latency_ms ? at - step.latency_ms : 0;
      // The latency of the last step is that of the whole run, so its bar begins after the step before.
      const from = !thought ? at : step.kind === "end" || !began ? Math.max(Math.min(before, at), began) : began;
      const bar = { step, result: null, from, to: at };
      if (step.kind === "call") calls.set(step.call_id, bar);
      bars.push(bar);
    }
    before = at;
  }
  return bars;
}

/** Returns the cost as text. @param {any} of a run or a step */
const priced = (of) => (of.price_known ? cost(of.cost_usd) : t("runs.no_price"));

/** @param {any[]} items @param {string} name */
const sum = (items, name) => items.reduce((total, each) => total + each[name], 0);

/** @param {string} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
