// Events as they arrive, of a conversation or, for operators, of the whole tenant: by type, paused or following; one as
// JSON, with its causes and effects and the rows that came from it.
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { events, get, path } from "../api.js";
import { t } from "../i18n.js";
import { useLoad } from "../load.js";
import { href } from "../router.js";
import { Badge, Empty, Failure, Head, IconButton, Json } from "../parts/common.js";
import { clip, moment } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { WindowedList } from "../parts/list.js";

const ROW = 40;
const MOST = 2000; // events that the tab keeps
const AGAIN_MS = 2000;
const NEWEST = 500; // sequences before the end at which the tenant's events begin
const IDS = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;

/** @param {{thread?: string}} props none: all conversations of the tenant */
export default function EventsScreen({ thread }) {
  const [paused, setPaused] = useState(false);
  const [type, setType] = useState("");
  const [event, setChosen] = useState(/** @type {any} */ (null));
  const { items, error, waiting } = useTail(thread, paused);
  const types = useMemo(() => [...new Set(items.map((each) => each.type))].sort(), [items]);
  const shown = type ? items.filter((each) => each.type === type) : items;
  const row = (/** @type {any} */ each) => html`<button type="button" class="event-row" aria-pressed=${each.seq === event?.seq} onClick=${() => setChosen(each.seq === event?.seq ? null : each)}>
    <span class="number muted event-seq">${each.seq}</span><span class="event-type"><i class="swatch bar-${colourOf(each.type)}" /><b class="clip">${each.type}</b></span>
    ${!thread && html`<span class="clip event-place" dir="auto">${clip(each.event?.thread ?? "", 60)}</span>`}<span class="clip muted mono grow" dir="auto">${clip(JSON.stringify(each.event?.data ?? each.event), 200)}</span>
    <time class="faint small event-time" datetime=${each.stored_at}>${new Date(each.stored_at).toLocaleTimeString()}</time></button>`;
  return html`<section class="screen full events">${!thread && html`<${Head} title=${t("screens.events")} about=${t("events.of_tenant")} />`}<div class="row apart">
      <div class="row"><select class="narrow" aria-label=${t("events.type")} value=${type} onChange=${(/** @type {any} */ change) => setType(change.target.value)}>
        <option value="">${t("events.every")}</option>${types.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
        <span class="muted small number">${t("events.count", { n: shown.length })}</span></div>
      <div class="row">${paused ? html`<${Badge} tone="warn">${t("events.waiting", { n: waiting })}<//>` : html`<${Badge} tone="good">${t("events.live")}<//>`}
        <button class="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}><${Icon} name=${paused ? "play" : "pause"} />${t(paused ? "events.go_on" : "events.pause")}</button></div></div>
    <${Failure} error=${error} />
    ${!shown.length ? !error && html`<${Empty} icon="events" title=${t("events.none")}>${t("events.none_about")}<//>` : html`<div class="memory-columns ${event ? "with-detail" : ""}">
      <${WindowedList} className="card-list" items=${shown} height=${ROW} row=${row} keyOf=${(/** @type {any} */ each) => each.seq} label=${t("screens.events")} follow=${!paused && !event} />
      ${event && html`<${Detail} key=${event.seq} event=${event} items=${items} thread=${thread ?? event.event?.thread} onOpen=${setChosen} />`}</div>`}
  </section>`;
}

/** @param {{event: any, items: any[], thread: string, onOpen: (event: any) => void}} props */
function Detail({ event, items, thread, onOpen }) {
  const { value: related, error } = useLoad((signal) => get(path`/api/threads/${thread}/events/${event.seq}`, { signal }), [thread, event.seq]);
  const around = useMemo(() => withRelated(items, related), [items, related]);
  const byId = useMemo(() => new Map(around.map((each) => [each.event?.id, each])), [around]);
  const before = causesOf(event, byId);
  return html`<aside class="card memory-detail" aria-label=${t("events.detail")}>
    <div class="row apart"><h2><span class="number">${event.seq}</span> ${event.type}</h2><${IconButton} label=${t("close")} icon="close" onClick=${() => onOpen(null)} /></div>
    <p class="muted small">${moment(event.stored_at)} · ${t("operation.partition", { n: event.partition })}</p>
    ${(event.type === "turn_recorded" || event.type === "answer_requested") && html`<p class="row"><a href=${href(["threads", thread], { seq: event.seq })}>${t("events.in_chat")}</a><a href=${href(["threads", thread, "context"], { seq: event.seq })}>${t("events.in_context")}</a></p>`}
    <section class="stack tight"><h3>${t("events.tree")}</h3>
      <ul class="event-tree">${before.map((cause) => html`<li key=${cause.seq}><${Node} event=${cause} label=${t("events.cause")} onOpen=${onOpen} /></li>`)}
        <li><${Branch} event=${event} items=${around} byId=${byId} onOpen=${onOpen} own depth=${0} /></li></ul></section>
    <${Failure} error=${/** @type {any} */ (error)?.status === 404 ? null : error} />
    ${related && html`<section class="stack tight" aria-label=${t("events.rows")}><h3>${t("events.rows")}</h3>
      ${!related.rows.length && html`<p class="muted small">${t("events.no_rows")}</p>`}
      ${related.rows.map((/** @type {any} */ of) => html`<details key=${of.table}><summary><b>${of.table}</b> <span class="muted small">${t("events.row_count", { n: of.rows.length, model: of.read_model })}</span></summary><${Json} value=${of.rows} /></details>`)}</section>`}
    <${Json} value=${event.event} />
  </aside>`;
}

/** Returns the events of the tab with those that the server found for one of them. @param {any[]} items @param {any} related */
function withRelated(items, related) {
  if (!related) return items;
  const seqs = new Set(items.map((each) => each.seq));
  const others = [...related.causes, ...related.effects].filter((each) => !seqs.has(each.seq));
  return others.length ? [...items, ...others].sort((a, b) => a.seq - b.seq) : items;
}

/** An event with what followed from it below it. @param {{event: any, items: any[], byId: Map<string, any>, onOpen: (event: any) => void, own?: boolean, depth: number}} props */
function Branch({ event, items, byId, onOpen, own = false, depth }) {
  const effects = depth < 4 ? items.filter((each) => each.seq > event.seq && causesOf(each, byId).at(-1) === event).slice(0, 50) : [];
  return html`<${Node} event=${event} own=${own} onOpen=${onOpen} />
    ${effects.length > 0 && html`<ul>${effects.map((each) => html`<li key=${each.seq}><${Branch} event=${each} items=${items} byId=${byId} onOpen=${onOpen} depth=${depth + 1} /></li>`)}</ul>`}`;
}

/** @param {{event: any, own?: boolean, label?: string, onOpen: (event: any) => void}} props */
const Node = ({ event, own, label, onOpen }) => html`<button type="button" class="event-node" aria-current=${own ? "true" : null} onClick=${() => onOpen(event)}>
  <i class="swatch bar-${colourOf(event.type)}" /><span class="number muted">${event.seq}</span> ${event.type}${label && html` <span class="faint small">${label}</span>`}</button>`;

/** Returns the earlier events that an event names, oldest first: its causation, requests, sources. @param {any} event @param {Map<string, any>} byId @returns {any[]} */
function causesOf(event, byId) {
  const known = seenCauses.get(event);
  if (known) return known.map((id) => byId.get(id)).filter((each) => each && each.seq < event.seq).sort((a, b) => a.seq - b.seq);
  const body = event.event;
  const text = typeof body === "object" && body ? JSON.stringify([body.causation, body.data]).slice(0, 200_000) : "";
  seenCauses.set(event, [...new Set(text.match(IDS) ?? [])]);
  return causesOf(event, byId);
}
const seenCauses = /** @type {WeakMap<any, string[]>} */ (new WeakMap());

/** Follows the events of a conversation, or of the tenant, and keeps the newest of these types. @param {string | undefined} thread @param {boolean} [paused] @param {string[]} [types] every one by default */
export function useTail(thread, paused = false, types) {
  const tail = useRef({ all: /** @type {any[]} */ ([]), more: /** @type {any[]} */ ([]) });
  const isPaused = useRef(paused);
  isPaused.current = paused;
  const [state, setState] = useState({ items: /** @type {any[]} */ ([]), error: /** @type {any} */ (null), waiting: 0 });
  const show = () => {
    const own = tail.current;
    if (!isPaused.current) { own.all = [...own.all, ...own.more].slice(-MOST); own.more = []; }
    setState((/** @type {any} */ before) => ({ ...before, items: own.all, waiting: own.more.length }));
  };
  useEffect(() => {
    const aborter = new AbortController();
    tail.current = { all: [], more: [] };
    let last = 0;
    let drawing = false;
    const follow = async () => {
      while (!aborter.signal.aborted) {
        const address = thread === undefined ? "/api/operations/events" : path`/api/threads/${thread}/events`;
        const query = thread === undefined ? { newest: NEWEST } : {};
        try {
          for await (const { data } of events("GET", address, { query, headers: last ? { "Last-Event-ID": String(last) } : {}, signal: aborter.signal })) {
            last = data.seq;
            if (types && !types.includes(data.type)) continue;
            tail.current.more = [...tail.current.more.slice(-MOST), data];
            if (!drawing) { drawing = true; setTimeout(() => { drawing = false; if (!aborter.signal.aborted) show(); }, 100); }
            setState((/** @type {any} */ before) => (before.error ? { ...before, error: null } : before));
          }
        } catch (/** @type {any} */ error) {
          if (aborter.signal.aborted) return;
          setState((/** @type {any} */ before) => ({ ...before, error }));
          if (error.status) return;
        }
        await new Promise((resume) => setTimeout(resume, AGAIN_MS));
      }
    };
    follow();
    return () => aborter.abort();
  }, [thread]);
  useEffect(show, [paused]);
  return state;
}

/** @param {string} type */
function colourOf(type) {
  if (type.startsWith("turn") || type.startsWith("answer")) return "3";
  if (type.startsWith("memory") || type.startsWith("memories") || type.startsWith("entit")) return "memory";
  if (type.startsWith("run_") || type.includes("tool")) return "tools";
  if (type.includes("summary") || type.includes("topic") || type.includes("segment")) return "1";
  return type.startsWith("thread") ? "2" : "system";
}
