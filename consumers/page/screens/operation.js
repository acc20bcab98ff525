// The screen for operators of a tenant: lag of the read models, dead letters, rebuilds, jobs, limits, usage and cost, and plots of activity.
import { html, useState } from "../html.js";
import { get, path, post } from "../api.js";
import { named, t } from "../i18n.js";
import { firstPages, useAgentNames, useEvery, useLoad } from "../load.js";
import { Meter } from "../parts/bars.js";
import { Badge, Failure, Head, Loading, Segments, Tile, Time, useWrite } from "../parts/common.js";
import { confirm } from "../parts/dialog.js";
import { ago, clip, cost, day, duration, moment, number, percent, short } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { Progress, followed } from "../parts/job.js";
import { Table } from "../parts/list.js";
import { Plot } from "../parts/plot.js";
import { toast } from "../parts/toast.js";

const LOOK_AGAIN_S = 5;
const DAY_S = 86_400;
const PAGES_OF_DAYS = 10; // of 100 days each
const VIEWS = ["now", "usage", "activity"];

export default function Operation() {
  const [view, setView] = useState("now");
  return html`<section class="screen">
    <${Head} title=${t("screens.operation")} about=${t("operation.about")}>
      <${Segments} label=${t("memories.view")} value=${view} onChange=${setView} options=${VIEWS.map((name) => [name, t(`operation.${name}`)])} />
    <//>
    ${view === "now" ? html`<${Now} />` : view === "usage" ? html`<${Used} />` : html`<${Activity} />`}
  </section>`;
}

function Now() {
  const lag = useLoad((signal) => get("/api/operations/lag", { signal }), []);
  const [pages, setPages] = useState(1);
  const letters = useLoad((signal) => firstPages("/api/operations/dead-letters", pages, signal), [pages]);
  const jobs = useLoad((signal) => get("/api/operations/schedule", { signal }), []);
  useEvery(() => { lag.reload(); letters.reload(); }, LOOK_AGAIN_S, []);
  const both = () => { lag.reload(); letters.reload(); };
  return html`<${Failure} error=${lag.error ?? letters.error ?? jobs.error} retry=${both} />
    ${!lag.value || !letters.value ? !lag.error && html`<${Loading} />` : html`<${Lags} behind=${lag.value}><${Letters} letters=${letters.value.items} more=${letters.value.more && (() => setPages(pages + 1))} onChange=${both} /><//>`}
    ${lag.value && html`<${Rebuild} names=${[...new Set(/** @type {string[]} */ (lag.value.projections.map((/** @type {any} */ each) => each.projection)))]} />`}
    ${jobs.value && html`<section class="stack tight"><h2>${t("operation.jobs")}</h2>
      <${Table} label=${t("operation.jobs")} items=${jobs.value} keyOf=${(/** @type {any} */ job) => job.job} columns=${[
        [t("operation.job"), (/** @type {any} */ job) => html`<b>${named("operation.names", job.job)}</b> <code class="faint" title=${t("operation.cron")}>${job.schedule}</code>`],
        [t("operation.due"), (/** @type {any} */ job) => moment(job.next_due_at)],
        [t("operation.last"), (/** @type {any} */ job) => (job.last ? html`<${Time} time=${job.last.due_at}>${ago(job.last.due_at)}<//> · ${duration(job.last.duration_ms)} ${job.last.errors > 0 && html`<${Badge} tone="bad">${t("operation.errors", { n: job.last.errors })}<//>`}` : t("operation.never"))],
        [t("operation.did"), (/** @type {any} */ job) => (job.last ? Object.entries(job.last.counts).filter(([, n]) => n).map(([what, n]) => `${named("operation.counts", what)}: ${number(/** @type {number} */ (n))}`).join(", ") || "–" : "–")],
      ]} /></section>`}
    <${Budgets} />`;
}

/** @param {any} lag */
const behindOf = (lag) => Math.max(0, lag.head - lag.position);

/** Shows how far the read models are behind the log. children: shown between the numbers and the list. @param {{behind: any, children: any}} props */
function Lags({ behind, children }) {
  const { projections, embedding } = behind;
  const most = Math.max(1, ...projections.map(behindOf));
  const partitions = projections.some((/** @type {any} */ each) => each.partition > 0);
  const waiting = embedding.chunks + embedding.memories;
  const stalled = projections.filter((/** @type {any} */ each) => each.stalled).length;
  const parked = projections.reduce((/** @type {number} */ all, /** @type {any} */ each) => all + each.parked, 0);
  return html`<div class="tiles">
      <${Tile} label=${t("operation.furthest")} value=${t("operation.behind", { n: Math.max(0, ...projections.map(behindOf)) })} />
      <${Tile} label=${t("operation.stalled")} value=${number(stalled)} tone=${stalled ? "tone-bad" : ""} />
      <${Tile} label=${t("operation.parked")} value=${number(parked)} tone=${parked ? "tone-bad" : ""} />
      <${Tile} label=${t("operation.to_embed")} value=${`${number(waiting)}${embedding.more ? "+" : ""}`} />
    </div>
    ${children}
    <section class="stack tight"><h2>${t("operation.lag")}</h2><div class="card lags" role="list" aria-label=${t("operation.lag")}>
      ${projections.map((/** @type {any} */ each) => html`<div key=${`${each.projection}/${each.partition}`} role="listitem" class="lag-row">
        <b class="clip">${each.projection}${partitions && html` <span class="muted small number">${t("operation.partition", { n: each.partition })}</span>`}</b>
        <span class="lag-marks">${each.stalled && html`<${Badge} tone="bad">${t("operation.stalled")}<//>`}${each.parked > 0 && html`<${Badge} tone="warn">${t("operation.parked_n", { n: each.parked })}<//>`}${each.rebuilt !== null && html`<${Badge} tone="accent">${t("operation.rebuilt", { share: percent(each.rebuilt) })}<//>`}</span>
        <span class="meter-track" aria-hidden="true"><span class="meter-fill bar-${each.stalled ? "bad" : behindOf(each) ? "warn" : "good"}" style=${{ width: `${behindOf(each) ? Math.max(4, (100 * behindOf(each)) / most) : 0}%` }} /></span>
        <span class="number lag-number">${!behindOf(each) && html`<span class="tone-good"><${Icon} name="check" /></span>`}${behindOf(each) ? t("operation.behind", { n: behindOf(each) }) : t("operation.current")}</span>
      </div>`)}</div></section>`;
}

/** Shows dead letters. more: a function that reads more of them; false if there are no more. @param {{letters: any[], more: false | (() => void), onChange: () => void}} props */
function Letters({ letters, more, onChange }) {
  const [write, busy] = useWrite();
  const retry = (/** @type {number | null} */ seq) => write(async () => {
    const done = await post("/api/operations/dead-letters/retry", { body: { seq } });
    toast(t("operation.retried", { n: done.applied.length, left: done.parked.length }));
    onChange();
  });
  const drop = async (/** @type {any} */ letter) => {
    if (!(await confirm({ title: t("operation.drop_title", { seq: letter.seq }), text: t("operation.drop_about"), action: t("operation.drop"), danger: true }))) return;
    await write(() => post(path`/api/operations/dead-letters/${letter.seq}/drop`, { body: { projection: letter.projection } }), t("operation.dropped"));
    onChange();
  };
  const parked = letters.filter((letter) => letter.status === "parked");
  return html`<section class="stack tight"><div class="row apart"><h2>${t("operation.letters")}</h2>
      ${parked.length > 1 && html`<button class="button small" disabled=${busy} onClick=${() => retry(null)}>${t("operation.retry_all")}</button>`}</div>
    ${!letters.length ? html`<p class="card muted row"><span class="tone-good"><${Icon} name="check" /></span>${t("operation.no_letters")}</p>`
      : html`<${Table} label=${t("operation.letters")} items=${letters} keyOf=${(/** @type {any} */ letter) => `${letter.seq}/${letter.projection}`} columns=${[
        [t("operation.event"), (/** @type {any} */ letter) => html`<span class="number">${letter.seq}</span> <code>${letter.event_type}</code>`],
        [t("operation.read_model"), (/** @type {any} */ letter) => letter.projection],
        [t("operation.error"), (/** @type {any} */ letter) => html`${named("operation.reasons", letter.reason)}${letter.reason === "poison" && html` <code class="faint" dir="auto">${clip(letter.error, 240)}</code>`}`],
        [t("operation.since"), (/** @type {any} */ letter) => html`<span class="nowrap"><${Time} time=${letter.parked_at}>${ago(letter.parked_at)}<//></span>`],
        ["", (/** @type {any} */ letter) => (letter.status !== "parked" ? html`<${Badge}>${t("operation.dropped")}<//>` : html`<span class="row nowrap">
          <button class="button small" disabled=${busy} onClick=${() => retry(letter.seq)}>${t("operation.retry")}</button>
          <button class="button small quiet" disabled=${busy} onClick=${() => drop(letter)}>${t("operation.drop")}</button></span>`)],
      ]} />`}
    ${more && html`<p class="row muted small">${t("operation.first", { n: letters.length })} <button class="button small" onClick=${more}>${t("operation.more")}</button></p>`}</section>`;
}

/** @param {{names: string[]}} props */
function Rebuild({ names }) {
  const [name, setName] = useState("");
  const [job, setJob] = useState(/** @type {any} */ (null));
  const [write, busy] = useWrite();
  const begin = () => write(async () => {
    await followed(await post("/api/operations/rebuild", { body: { projection: name || null } }), setJob);
  });
  return html`<section class="card stack tight"><h2>${t("operation.rebuild")}</h2><p class="muted">${t("operation.rebuild_about")}</p>
    <div class="row"><select aria-label=${t("operation.read_model")} class="narrow" value=${name} onChange=${(/** @type {any} */ event) => setName(event.target.value)}>
      <option value="">${t("operation.every")}</option>${names.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
      <button class="button" disabled=${busy} onClick=${begin}>${t("operation.rebuild")}</button></div>
    ${job && html`<${Progress} job=${job} />`}</section>`;
}

/** @param {string} name of a limit @param {number} value */
const amount = (name, value) => (name.startsWith("usd") ? cost(value) : short(value));

function Budgets() {
  const { value } = useLoad((signal) => get("/api/limits", { signal }), []);
  if (!value) return null;
  return html`<section class="card stack tight budgets"><h2>${t("operation.budgets")}</h2><p class="muted">${t("operation.budgets_about")}</p>
    ${value.map((/** @type {any} */ guard) => html`<${Meter} key=${guard.name} label=${named("operation.limits", guard.name)} value=${guard.used} most=${guard.limit}
      kind=${guard.left <= guard.limit * 0.1 ? "bad" : "accent"} text=${t("operation.used", { used: amount(guard.name, guard.used), limit: amount(guard.name, guard.limit) })} />`)}</section>`;
}

function Used() {
  const [by, setBy] = useState("model");
  const [pages, setPages] = useState(1);
  const agentOf = useAgentNames();
  const days = useLoad((signal) => firstPages("/api/operations/usage", PAGES_OF_DAYS, signal, { by: "day" }), []);
  const table = useLoad((signal) => firstPages("/api/operations/usage", pages, signal, { by }), [by, pages]);
  const rows = [...(days.value?.items ?? [])].reverse();
  const times = rows.map((/** @type {any} */ row) => Date.parse(`${row.key}T00:00:00Z`) / 1000);
  return html`<${Failure} error=${days.error ?? table.error} />
    ${days.value && html`<div class="plots">
      <${Plot} title=${t("operation.cost_day")} times=${times} step=${DAY_S} least=${14} bars series=${[{ label: t("runs.cost"), kind: "3", values: rows.map((/** @type {any} */ row) => row.cost_usd) }]} shown=${cost} whole=${false} />
      <${Plot} title=${t("operation.tokens_day")} times=${times} step=${DAY_S} least=${14} bars series=${[{ label: t("runs.tokens_in"), kind: "2", values: rows.map((/** @type {any} */ row) => row.tokens_in) }, { label: t("runs.tokens_out"), kind: "tools", values: rows.map((/** @type {any} */ row) => row.tokens_out) }]} shown=${short} />
    </div>`}
    <section class="stack tight"><div class="row apart"><h2>${t("operation.usage_by")}</h2><${Segments} label=${t("operation.usage_by")} value=${by} onChange=${(/** @type {string} */ chosen) => { setBy(chosen); setPages(1); }} options=${["model", "agent", "user", "day"].map((key) => [key, t(`operation.by.${key}`)])} /></div>
      ${!table.value ? html`<${Loading} />` : html`<${Table} label=${t("operation.usage_by")} items=${table.value.items} keyOf=${(/** @type {any} */ row) => row.key} columns=${[
        [t(`operation.by.${by}`), (/** @type {any} */ row) => html`<span dir="auto">${by === "agent" ? agentOf(row.key) || "–" : by === "day" ? day(`${row.key}T12:00`) : row.key || "–"}</span>`],
        [t("operation.calls"), (/** @type {any} */ row) => number(row.calls), "number"],
        [t("runs.tokens_in"), (/** @type {any} */ row) => number(row.tokens_in), "number"],
        [t("runs.tokens_out"), (/** @type {any} */ row) => number(row.tokens_out), "number"],
        [t("runs.cost"), (/** @type {any} */ row) => (row.unpriced_tokens && !row.cost_usd ? t("runs.no_price") : cost(row.cost_usd)), "number"],
        [t("operation.latency"), (/** @type {any} */ row) => duration(row.latency_ms_mean), "number"],
        [t("operation.failed"), (/** @type {any} */ row) => number(row.errors), "number"],
      ]} />
        ${table.value.more && html`<p class="row muted small">${t("operation.rows", { n: table.value.items.length })} <button class="button small" onClick=${() => setPages(pages + 1)}>${t("operation.more")}</button></p>`}`}</section>`;
}

function Activity() {
  const [hours, setHours] = useState("168");
  const { value, error } = useLoad((signal) => get("/api/operations/activity", { query: { hours }, signal }), [hours]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!value) return html`<${Loading} />`;
  const times = [...new Set(/** @type {number[]} */ (value.map((/** @type {any} */ row) => Date.parse(row.hour) / 1000)))].sort((a, b) => a - b);
  const series = (/** @type {(row: any) => boolean} */ fits, /** @type {string} */ name) => {
    const sums = new Map();
    for (const row of value) if (fits(row)) sums.set(Date.parse(row.hour) / 1000, (sums.get(Date.parse(row.hour) / 1000) ?? 0) + row[name]);
    return times.map((time) => sums.get(time) ?? 0);
  };
  const every = () => true;
  return html`<div class="row apart"><p class="muted">${t("operation.activity_about")}</p><${Segments} label=${t("operation.span")} value=${hours} onChange=${setHours} options=${[["24", t("operation.day")], ["168", t("operation.week")], ["720", t("operation.month")]]} /></div>
    ${!times.length ? html`<p class="card muted">${t("operation.no_activity")}</p>` : html`<div class="plots">
      <${Plot} title=${t("operation.events_hour")} times=${times} step=${3600} least=${Number(hours)} bars series=${[{ label: t("screens.events"), kind: "3", values: series(every, "events") }]} shown=${short} />
      <${Plot} title=${t("operation.turns_hour")} times=${times} step=${3600} least=${Number(hours)} bars series=${[{ label: t("chat.roles.user"), kind: "memory", values: series((row) => row.role === "user", "events") }, { label: t("chat.roles.assistant"), kind: "2", values: series((row) => row.role === "assistant", "events") }]} shown=${short} />
      <${Plot} title=${t("operation.tokens_hour")} times=${times} step=${3600} least=${Number(hours)} bars series=${[{ label: t("runs.tokens_in"), kind: "2", values: series(every, "tokens_in") }, { label: t("runs.tokens_out"), kind: "tools", values: series(every, "tokens_out") }]} shown=${short} />
      <${Plot} title=${t("operation.errors_hour")} times=${times} step=${3600} least=${Number(hours)} bars series=${[{ label: t("operation.failed"), kind: "bad", values: series(every, "errors") }]} shown=${short} />
    </div>`}`;
}
