// The screen that shows events as they arrive, of a conversation or, for operators, of the whole tenant. They can be filtered by
// type and paused. A chosen event is shown as JSON, with its causes, its effects and the rows made from it.
import { html, useEffect, useMemo, useState } from "../html.js";
import { get, path } from "../api.js";
import { t } from "../i18n.js";
import { useEscape, useLoad } from "../load.js";
import { href } from "../router.js";
import { session } from "../session.js";
import { MOST, useTail } from "../tail.js";
import { Badge, Empty, Failure, Head, IconButton, Json, Loading } from "../parts/common.js";
import { clip, clock, moment } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { WindowedList } from "../parts/list.js";

const ROW = 40;
const NEWEST = 500; // the tenant's events begin so many sequences before the end of the log
const TURNS = 200; // a conversation's events begin with those of so many newest turns; "earlier" adds as many
const DRAWN = 50; // most effects of one event in the tree
const IDS = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;

/** @param {{thread?: string}} props thread: undefined shows all conversations of the tenant */
export default function EventsScreen({ thread }) {
  const [paused, setPaused] = useState(false);
  const [type, setType] = useState("");
  const [event, setChosen] = useState(/** @type {any} */ (null));
  const { address, query, earlier } = useStart(thread);
  const { items, error: problem, waiting, settled } = useTail(address, query, paused);
  const error = problem?.status === 404 ? null : problem; // 404: the conversation has not begun
  const types = useMemo(() => [...new Set(items.map((each) => each.type))].sort(), [items]);
  const shown = type ? items.filter((each) => each.type === type) : items;
  const row = (/** @type {any} */ each) => html`<button type="button" class="event-row" aria-pressed=${each.seq === event?.seq} onClick=${() => setChosen(each.seq === event?.seq ? null : each)}>
    <span class="number muted event-seq">${each.seq}</span><span class="event-type"><i class="swatch bar-${colourOf(each.type)}" /><b class="clip">${each.type}</b></span>
    ${!thread && html`<span class="clip event-place" dir="auto">${clip(each.event?.thread ?? "", 60)}</span>`}<span class="clip muted grow event-gist" dir="auto">${gistOf(each.event)}</span>
    <time class="faint small event-time" datetime=${each.stored_at} title=${moment(each.stored_at)}>${clock(each.stored_at, true)}</time></button>`;
  return html`<section class="screen full events">${!thread && html`<${Head} title=${t("screens.events")} about=${t("events.of_tenant")} />`}<div class="row apart">
      <div class="row"><select class="narrow" aria-label=${t("events.type")} value=${type} onChange=${(/** @type {any} */ change) => setType(change.target.value)}>
        <option value="">${t("events.every")}</option>${types.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
        <span class="muted small number">${t(items.length === MOST ? "events.newest" : "events.count", { n: shown.length })}</span>
        ${earlier && items.length < MOST && html`<button class="button small" onClick=${earlier}>${t("events.earlier")}</button>`}</div>
      <div class="row">${paused && !error ? html`<${Badge} tone="warn">${t("events.waiting", { n: waiting })}<//>` : error ? html`<${Badge} tone="bad">${t("events.broken")}<//>` : html`<${Badge} tone="good">${t("events.live")}<//>`}
        <button class="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}><${Icon} name=${paused ? "play" : "pause"} />${t(paused ? "events.go_on" : "events.pause")}</button></div></div>
    <${Failure} error=${error} />
    ${!shown.length ? !error && (!settled ? html`<${Loading} lines=${8} />` : html`<${Empty} icon="events" title=${t("events.none")}>${t(thread ? "events.none_about" : "events.none_of_tenant")}<//>`) : html`<div class="memory-columns ${event ? "with-detail" : ""}">
      <${WindowedList} className="card-list" items=${shown} height=${ROW} row=${row} keyOf=${(/** @type {any} */ each) => each.seq} label=${t("screens.events")} follow=${!paused && !event} />
      ${event && html`<${Detail} key=${event.seq} event=${event} items=${items} thread=${thread ?? event.event?.thread} ofTenant=${!thread} onOpen=${setChosen} />`}</div>`}
  </section>`;
}

/** Returns the address and query of the stream to follow, and a function that begins earlier (null if there are no earlier
 * events). @param {string | undefined} thread */
function useStart(thread) {
  const [before, setBefore] = useState(/** @type {number | null} */ (null)); // the sequence before which the turns are read
  const { value: start, loading } = useLoad(async (signal) => {
    if (thread === undefined) return 0;
    const query = { limit: TURNS, newest: true, before_seq: before };
    const page = await get(path`/api/threads/${thread}/turns`, { query, signal }).catch(() => ({ items: [], next: null }));
    return page.next === null ? 0 : page.items[0].seq - 1;
  }, [thread, before]);
  useEffect(() => setBefore(null), [thread]);
  if (thread === undefined) return { address: "/api/operations/events", query: { newest: NEWEST }, earlier: null };
  const earlier = start && !loading ? () => setBefore(start + 1) : null;
  return { address: start === undefined ? null : path`/api/threads/${thread}/events`, query: { after: start || null }, earlier };
}

/** Returns one line about an event: the words of a turn or memory, otherwise its fields. @param {any} event */
function gistOf(event) {
  const data = event?.data;
  if (typeof data !== "object" || data === null) return clip(typeof event === "string" ? event : JSON.stringify(event));
  if (data.role) {
    const blocks = typeof data.content === "string" ? [{ text: data.content }] : data.content ?? [];
    const words = blocks.map((/** @type {any} */ block) => block.text ?? block.thinking ?? block.name ?? block.type).join(" · ");
    return clip(`${data.role}: ${words || (data.tool_calls ?? []).map((/** @type {any} */ call) => call.name).join(", ")}`);
  }
  if (data.memory?.content) return clip(data.memory.content);
  return clip(Object.entries(data).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(" · "));
}

/** @param {any} event */
const isOwn = (event) => event.event?.user === session.get()?.caller.user;

/** Reads the causes, effects and rows of an event. Operators get only ids and numbers from the rows of other people.
 * @param {any} event @param {string} thread @param {boolean} ofTenant @param {AbortSignal} signal */
async function relationsOf(event, thread, ofTenant, signal) {
  const forOperator = async () => ({ ...await get(path`/api/operations/events/${event.seq}`, { signal }), ofOther: true });
  if (ofTenant && !isOwn(event)) return forOperator();
  return get(path`/api/threads/${thread}/events/${event.seq}`, { signal }).catch((error) => {
    if (ofTenant && [403, 404].includes(error.status)) return forOperator();
    throw error;
  });
}

/** @param {{event: any, items: any[], thread: string, ofTenant: boolean, onOpen: (event: any) => void}} props */
function Detail({ event, items, thread, ofTenant, onOpen }) {
  const { value: related, error } = useLoad((signal) => relationsOf(event, thread, ofTenant, signal), [thread, event.seq]);
  const around = useMemo(() => withRelated(items, related), [items, related]);
  const byId = useMemo(() => new Map(around.map((each) => [each.event?.id, each])), [around]);
  const before = causesOf(event, byId);
  useEscape(() => onOpen(null));
  return html`<aside class="card memory-detail" aria-label=${t("events.detail")}>
    <div class="row apart"><h2><span class="number">${event.seq}</span> ${event.type}</h2><${IconButton} label=${t("close")} icon="close" onClick=${() => onOpen(null)} /></div>
    <p class="muted small">${moment(event.stored_at)} · ${t("operation.partition", { n: event.partition })}</p>
    ${(event.type === "turn_recorded" || event.type === "answer_requested") && (!ofTenant || isOwn(event)) && html`<p class="row"><a href=${href(["threads", thread], { seq: event.seq })}>${t("events.in_chat")}</a><a href=${href(["threads", thread, "context"], { seq: event.seq })}>${t("events.in_context")}</a></p>`}
    <section class="stack tight"><h3>${t("events.tree")}</h3>
      <ul class="event-tree">${before.map((cause) => html`<li key=${cause.seq}><${Node} event=${cause} label=${t("events.cause")} onOpen=${onOpen} /></li>`)}
        <li><${Branch} event=${event} items=${around} byId=${byId} onOpen=${onOpen} own depth=${0} /></li></ul>
      ${related?.cut && html`<p class="muted small">${t("events.cut")}</p>`}</section>
    <${Failure} error=${/** @type {any} */ (error)?.status === 404 ? null : error} />
    ${related && html`<section class="stack tight" aria-label=${t("events.rows")}><h3>${t("events.rows")}</h3>
      ${related.ofOther && html`<p class="muted small">${t("events.of_other")}</p>`}
      ${!related.rows.length && html`<p class="muted small">${t(related.ofOther ? "events.no_rows_of_other" : "events.no_rows")}</p>`}
      ${related.rows.map((/** @type {any} */ of) => html`<details key=${of.table}><summary><b>${of.table}</b> <span class="muted small">${t("events.row_count", { n: of.rows.length })}${of.table === of.read_model ? "" : ` · ${t("operation.read_model")}: ${of.read_model}`}</span></summary><${Json} value=${of.rows} /></details>`)}</section>`}
    <${Json} value=${event.event} />
  </aside>`;
}

/** Returns the loaded events together with the causes and effects that the server found for one of them. @param {any[]} items @param {any} related */
function withRelated(items, related) {
  if (!related) return items;
  const seqs = new Set(items.map((each) => each.seq));
  const others = [...related.causes, ...related.effects].filter((each) => !seqs.has(each.seq));
  return others.length ? [...items, ...others].sort((a, b) => a.seq - b.seq) : items;
}

/** Shows an event with its effects below it. @param {{event: any, items: any[], byId: Map<string, any>, onOpen: (event: any) => void, own?: boolean, depth: number}} props */
function Branch({ event, items, byId, onOpen, own = false, depth }) {
  const effects = depth < 4 ? items.filter((each) => each.seq > event.seq && causesOf(each, byId).at(-1) === event).slice(0, DRAWN) : [];
  return html`<${Node} event=${event} own=${own} onOpen=${onOpen} />
    ${effects.length > 0 && html`<ul>${effects.map((each) => html`<li key=${each.seq}><${Branch} event=${each} items=${items} byId=${byId} onOpen=${onOpen} depth=${depth + 1} /></li>`)}</ul>`}`;
}

/** @param {{event: any, own?: boolean, label?: string, onOpen: (event: any) => void}} props */
const Node = ({ event, own, label, onOpen }) => html`<button type="button" class="event-node" aria-current=${own ? "true" : null} onClick=${() => onOpen(event)}>
  <i class="swatch bar-${colourOf(event.type)}" /><span class="number muted">${event.seq}</span> ${event.type}${label && html` <span class="faint small">${label}</span>`}</button>`;

/** Returns the earlier events whose ids the event contains (causation, request, sources), oldest first. @param {any} event @param {Map<string, any>} byId @returns {any[]} */
function causesOf(event, byId) {
  const known = seenCauses.get(event);
  if (known) return known.map((id) => byId.get(id)).filter((each) => each && each.seq < event.seq).sort((a, b) => a.seq - b.seq);
  const body = event.event;
  const text = typeof body === "object" && body ? JSON.stringify([body.causation, body.data]).slice(0, 200_000) : "";
  seenCauses.set(event, [...new Set(text.match(IDS) ?? [])]);
  return causesOf(event, byId);
}
const seenCauses = /** @type {WeakMap<any, string[]>} */ (new WeakMap());

/** @param {string} type */
function colourOf(type) {
  if (type.startsWith("turn") || type.startsWith("answer")) return "3";
  if (type.startsWith("memory") || type.startsWith("memories") || type.startsWith("entit")) return "memory";
  if (type.startsWith("run_") || type.includes("tool")) return "tools";
  if (type.includes("summary") || type.includes("topic") || type.includes("segment")) return "1";
  return type.startsWith("thread") ? "2" : "system";
}
