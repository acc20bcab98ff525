// The screen that shows what a model sees of a conversation: now, with another question or window, or at an earlier sequence.
import { html, useEffect, useRef, useState } from "../html.js";
import { get, path, post } from "../api.js";
import { t } from "../i18n.js";
import { useLoad } from "../load.js";
import { go } from "../router.js";
import { Meter } from "../parts/bars.js";
import { Badge, Empty, Failure, Field, Loading, Segments } from "../parts/common.js";
import { Degraded } from "../parts/degraded.js";
import { Compare } from "../parts/compare.js";
import { moment, number, short } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { Messages } from "../parts/messages.js";
import { WindowBar } from "../parts/window_bar.js";

const WINDOWS = ["", "2000", "4000", "8000", "16000", "32000"];
const PAUSE_MS = 180;
const TURNS = 200; // answers within the newest 200 turns are marked

/** @param {{thread: string, query: Record<string, string>}} props */
export default function ContextScreen({ thread, query }) {
  const [view, setView] = useState(query.a ? "compare" : "window");
  const { value: log, error: logError, loading } = useLoad((signal) => logOf(thread, signal), [thread]);
  if (loading) return html`<div class="screen"><${Loading} /></div>`;
  if (logError || !log) return html`<div class="screen"><${Failure} error=${logError} /></div>`;
  if (!log.last) return html`<${Empty} icon="context" title=${t("context.none")}>${t("context.none_about")}<//>`;
  const choose = (/** @type {string} */ chosen) => { setView(chosen); go(["threads", thread, "context"], {}, { replace: true }); };
  return html`<div class="context-scroll"><section class="screen">
    <div class="row apart">
      <p class="muted">${t("context.about")}</p>
      ${log.receipts.length > 1 && html`<${Segments} label=${t("context.view")} value=${view} onChange=${choose} options=${[["window", t("context.single")], ["compare", t("context.both")]]} />`}
    </div>
    ${view === "compare" && log.receipts.length > 1
      ? html`<${Compare} thread=${thread} receipts=${log.receipts} first=${query.a} second=${query.b} />`
      : html`<${Explore} thread=${thread} log=${log} seq=${query.seq ? Number(query.seq) : null} />`}
  </section></div>`;
}

/** Returns the first and last sequence of the conversation, and the receipts of its newest answers.
 * @param {string} thread @param {AbortSignal} signal */
async function logOf(thread, signal) {
  const turns = (/** @type {Record<string, any>} */ query) => get(path`/api/threads/${thread}/turns`, { query, signal });
  try {
    const [oldest, newest] = await Promise.all([turns({ limit: 1 }), turns({ limit: TURNS, newest: true })]);
    const since = newest.next === null ? 0 : newest.items[0].seq;
    const receipts = await get(path`/api/threads/${thread}/receipts`, { query: { limit: TURNS, since }, signal });
    return { first: oldest.items[0]?.seq ?? 0, last: newest.items.at(-1)?.seq ?? 0, receipts: receipts.items, all: since === 0 };
  } catch (/** @type {any} */ error) {
    if (error.status === 404) return { first: 0, last: 0, receipts: [], all: true };
    throw error;
  }
}

/** @param {{thread: string, log: {first: number, last: number, receipts: any[]}, seq: number | null}} props */
function Explore({ thread, log, seq }) {
  const [asOf, setAsOf] = useState(seq);
  const [question, setQuestion] = useState("");
  const [window, setWindow] = useState("");
  const asked = useLater({ asOf, question, window }, PAUSE_MS);
  const [active, setActive] = useState(/** @type {string | null} */ (null));
  useEffect(() => setAsOf(seq), [seq]);
  const { value: context, error, loading } = useLoad((signal) => {
    const address = path`/api/threads/${thread}/context`;
    const query = asked.question.trim() || undefined;
    const tokens = asked.window ? Number(asked.window) : undefined;
    return asked.asOf === null ? post(address, { body: { query, window: tokens }, signal })
      : get(address, { query: { as_of: asked.asOf, query, tokens }, signal });
  }, [thread, JSON.stringify(asked)]);
  const receipt = log.receipts.find((each) => each.receipt.as_of_seq === asked.asOf);
  const frame = useRef(/** @type {any} */ (null));
  const focus = (/** @type {string} */ inside, /** @type {string} */ part) => frame.current.querySelector(`${inside} [data-part="${part}"]`)?.focus();

  return html`<div class="context" ref=${frame}>
    <div class="card context-controls">
      <${AsOf} log=${log} value=${asOf} onChange=${setAsOf} />
      <div class="context-fields">
        <${Field} label=${t("context.question")}><input value=${question} dir="auto" placeholder=${t("context.question_about")}
          onInput=${(/** @type {any} */ event) => setQuestion(event.target.value)} /><//>
        <div class="field"><span class="field-label">${t("context.window")}</span>
          <${Segments} label=${t("context.window")} value=${window} onChange=${setWindow}
            options=${WINDOWS.map((each) => [each, each ? short(Number(each)) : t("context.own_window")])} /></div>
      </div>
    </div>
    <${Failure} error=${error} />
    ${!context ? !error && html`<${Loading} lines=${8} />` : html`
      <div class="card ${loading ? "stale" : ""}">
        <div class="row context-facts">
          <${Badge}>${t("context.seen_at", { seq: context.seq })}<//>
          ${receipt && html`<${Badge} tone="accent">${t("context.answer_at", { model: receipt.receipt.model, time: moment(receipt.time) })}<//>`}
          ${context.matches === true && html`<${Badge} tone="good">${t("seen.matches")}<//>`}
          ${context.matches === false && html`<${Badge} tone="warn">${t("seen.differs")}<//>`}
          <${Degraded} reason=${context.degraded} />
        </div>
        <${WindowBar} context=${context} active=${active} onActive=${setActive} onChoose=${(/** @type {string} */ part) => focus(".messages", part)} />
      </div>
      <div class="context-columns">
        <section class="card context-messages" aria-label=${t("context.messages")}>
          <h2>${t("context.messages")} <span class="muted number">${number(context.messages.length)}</span></h2>
          <${Messages} thread=${thread} messages=${context.messages} shares=${context.shares.messages} active=${active} onActive=${setActive} onChoose=${(/** @type {string} */ part) => focus(".window-bar", part)} />
        </section>
        <div class="stack">
          <section class="card stack"><h2>${t("context.tiers")}</h2>
            ${context.tiers.map((/** @type {any} */ tier) => html`<${Meter} key=${tier.tier} kind=${tier.tier} label=${t(`window.tier_${tier.tier}`)} value=${tier.tokens} most=${tier.limit}
              text=${short(tier.tokens)} />`)}
            <p class="muted small">${t("context.tiers_about")}</p></section>
          <section class="card stack"><h2>${t("context.dropped")}</h2>
            ${context.remarks.length ? html`<ul class="remarks">${context.remarks.map((/** @type {any} */ remark) => html`<li key=${remark.reason}>
              <span>${remark.reason}</span><span class="muted small number">${t("window.dropped", { n: remark.turns.count })} · ${spans(remark.turns.spans)}</span></li>`)}</ul>`
              : html`<p class="muted">${t("window.nothing_dropped")}</p>`}</section>
        </div>
      </div>`}
  </div>`;
}

/** Shows a slider over the log, with a mark for each answer. @param {{log: any, value: number | null, onChange: (seq: number | null) => void}} props */
function AsOf({ log, value, onChange }) {
  const range = Math.max(1, log.last - log.first);
  const at = value ?? log.last;
  return html`<div class="as-of">
    <div class="row apart"><span class="field-label">${t("context.as_of")}</span>
      <span class="row"><span class="number">${value === null ? t("context.now") : t("context.seq", { seq: at })}</span>
        ${value !== null && html`<button class="button small" onClick=${() => onChange(null)}>${t("context.to_now")}</button>`}</span></div>
    <input type="range" min=${log.first} max=${log.last} value=${at} aria-label=${t("context.as_of")} aria-valuetext=${t("context.seq", { seq: at })}
      onInput=${(/** @type {any} */ event) => onChange(Number(event.target.value) >= log.last ? null : Number(event.target.value))} />
    ${log.receipts.length > 0 && html`<div class="as-of-marks">${log.receipts.map((/** @type {any} */ each) => html`<button key=${each.seq} type="button" class="as-of-mark"
      style=${{ left: `${Math.min(100, Math.max(0, ((each.receipt.as_of_seq - log.first) / range) * 100))}%` }}
      aria-pressed=${value === each.receipt.as_of_seq} title=${t("context.answer_at", { model: each.receipt.model, time: moment(each.time) })}
      aria-label=${t("context.answer_at", { model: each.receipt.model, time: moment(each.time) })} onClick=${() => onChange(each.receipt.as_of_seq)} />`)}</div>
      <p class="faint small"><${Icon} name="eye" /> ${t(log.all ? "context.marks" : "context.marks_newest")}</p>`}
  </div>`;
}

/** @param {[number, number][]} spans */
const spans = (spans) => spans.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");

/** Returns a value that follows `value` once it has not changed for `pause` milliseconds. @template T @param {T} value @param {number} pause @returns {T} */
function useLater(value, pause) {
  const [later, setLater] = useState(value);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) { first.current = false; return undefined; }
    const timer = setTimeout(() => setLater(value), pause);
    return () => clearTimeout(timer);
  }, [JSON.stringify(value)]);
  return later;
}
