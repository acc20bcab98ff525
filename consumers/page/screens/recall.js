// The screen that shows what is recalled for a question, and why: the parts of every score, the turns around a hit, and the same search as a command.
import { html, useState } from "../html.js";
import { get, path, post } from "../api.js";
import { named, t } from "../i18n.js";
import { useLoad } from "../load.js";
import { go, href } from "../router.js";
import { Meter, StackedBar } from "../parts/bars.js";
import { Badge, Code, Empty, Failure, Field, Head, Loading, Segments } from "../parts/common.js";
import { Degraded } from "../parts/degraded.js";
import { clip, day, moment, number, percent } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { Turns, spoken } from "../parts/turns.js";

// The colours of the parts of a passage's score; other parts have the colour `system`.
const COLOURS = { bm25: "3", dense: "2", context: "memory", thread: "1", session: "tools", feedback: "good", rerank: "accent" };
const KINDS = ["FACT", "PREFERENCE", "DECISION", "SUMMARY", "FEEDBACK"];

/** @param {{query: Record<string, string>}} props */
export default function Recall({ query }) {
  const asked = query.q ?? "";
  const options = { k: Number(query.k) || 5, keyword_only: query.keywords === "1", history: query.history === "1", kinds: KINDS.filter((each) => query.kind === each), thread: query.thread || undefined };
  const [typed, setTyped] = useState(asked);
  const body = { query: asked, explain: true, ...options };
  const { value, error, loading } = useLoad((signal) => (asked ? post("/api/recall", { body, signal }) : Promise.resolve(null)), [JSON.stringify(body)]);
  const change = (/** @type {Record<string, any>} */ changed) => go(["recall"], { ...query, q: typed.trim(), ...changed }, { replace: true });
  return html`<section class="screen recall">
    <${Head} title=${t("screens.recall")} about=${t("recall.about")} />
    <form class="card stack recall-form" onSubmit=${(/** @type {any} */ event) => { event.preventDefault(); change({}); }}>
      <div class="row"><label class="search grow recall-question"><${Icon} name="search" /><input type="search" value=${typed} dir="auto" autofocus placeholder=${t("recall.question")} aria-label=${t("recall.question")}
        onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} /></label><button class="button primary" disabled=${!typed.trim()}>${t("recall.ask")}</button></div>
      <div class="row recall-options">
        <${Segments} label=${t("recall.count")} value=${String(options.k)} onChange=${(/** @type {string} */ k) => change({ k })} options=${["3", "5", "10", "20"].map((k) => [k, t("recall.hits", { n: Number(k) })])} />
        <${Segments} label=${t("recall.way")} value=${query.keywords === "1" ? "1" : ""} onChange=${(/** @type {string} */ keywords) => change({ keywords })} options=${[["", t("recall.both")], ["1", t("recall.keywords")]]} />
        <label class="check"><input type="checkbox" checked=${options.history} onChange=${(/** @type {any} */ event) => change({ history: event.target.checked ? "1" : "" })} />${t("memories.ended_too")}</label>
        ${query.thread && html`<${Badge} tone="accent">${t("recall.in_thread", { thread: clip(query.thread, 40) })} <button class="icon-button tiny" type="button" aria-label=${t("close")} onClick=${() => change({ thread: "" })}><${Icon} name="close" /></button><//>`}
      </div>
    </form>
    <${Failure} error=${error} />
    ${!asked ? html`<${Empty} icon="recall" title=${t("recall.none")}>${t("recall.none_about")}<//>`
      : !value ? loading && html`<${Loading} lines=${6} />` : html`<div class="stack ${loading ? "stale" : ""}">
        <${Reading} value=${value} />
        <div class="recall-columns">
          <section class="stack" aria-label=${t("recall.passages")}><h2>${t("recall.passages")} <span class="muted number">${value.items.length}</span></h2>
            ${value.items.length ? value.items.map((/** @type {any} */ hit, /** @type {number} */ at) => html`<${Hit} key=${hit.chunk_id ?? at} hit=${hit} rank=${at + 1} best=${value.items[0].score} />`)
              : html`<p class="muted">${t("recall.no_passages")}</p>`}</section>
          <section class="stack" aria-label=${t("screens.memories")}><div class="row"><h2>${t("screens.memories")} <span class="muted number">${value.memories.length}</span></h2><${Degraded} reason=${value.memories_degraded} /></div>
            ${value.memories.length ? value.memories.map((/** @type {any} */ memory) => html`<${Remembered} key=${memory.id} memory=${memory} />`)
              : html`<p class="muted">${t("recall.no_memories")}</p>`}</section>
        </div>
        <${Commands} body=${{ query: asked, k: options.k, ...(options.keyword_only ? { keyword_only: true } : {}), ...(options.history ? { history: true } : {}), ...(options.kinds.length ? { kinds: options.kinds } : {}), ...(options.thread ? { thread: options.thread } : {}), explain: true }} />
      </div>`}
  </section>`;
}

/** Shows how the question was understood, and how likely a hit answers it. @param {{value: any}} props */
function Reading({ value }) {
  const { question, confidence, degraded } = value;
  return html`<div class="card recall-reading">
    ${confidence !== null && html`<div class="recall-confidence"><${Meter} label=${t("recall.confidence")} value=${confidence} text=${percent(confidence)} kind=${confidence >= 0.5 ? "good" : "warn"} />
      <p class="muted small">${t(confidence >= 0.5 ? "recall.likely" : "recall.unlikely")}</p></div>`}
    ${question && html`<dl class="facts"><dt>${t("recall.kind")}</dt><dd>${named("recall.question_kinds", question.kind)}</dd><dt>${t("recall.words_of")}</dt><dd>${named("recall.speakers", question.words_of)}</dd>
      ${question.parts.flatMap((/** @type {any} */ part) => part.dates).length > 0 && html`<dt>${t("recall.dates")}</dt><dd>${question.parts.flatMap((/** @type {any} */ part) => part.dates).map((/** @type {any} */ date) => (typeof date === "string" ? date : JSON.stringify(date))).join(", ")}</dd>`}</dl>`}
    <${Degraded} reason=${degraded} />
  </div>`;
}

/** @param {Record<string, number>} parts */
const partsOf = (parts) => Object.entries(parts).filter(([, value]) => Math.abs(value) > 0.0005).sort((one, other) => Math.abs(other[1]) - Math.abs(one[1]));

/** @param {{hit: any, rank: number, best: number}} props */
function Hit({ hit, rank, best }) {
  const [open, setOpen] = useState(false);
  const parts = partsOf(hit.parts ?? {});
  const most = Math.max(0.001, ...parts.map(([, value]) => Math.abs(value)));
  const bar = parts.filter(([, value]) => value > 0).map(([name, value]) => ({ key: name, kind: COLOURS[/** @type {keyof typeof COLOURS} */ (name)] ?? "system", label: named("recall.parts", name), value, title: `${named("recall.parts", name)}: ${number(value, 3)}` }));
  return html`<article class="card hit">
    <header class="row apart"><span class="row"><b class="hit-rank number">${rank}</b><span dir="auto">${named("chat.roles", hit.speaker)}</span><span class="muted small">${moment(hit.time)}</span></span>
      <span class="number" title=${t("memories.score")}>${number(hit.score, 3)}</span></header>
    <${StackedBar} parts=${bar} total=${Math.max(best, 0.001)} label=${t("memories.score")} />
    <p class="hit-text" dir="auto">${clip(hit.text, 600)}</p>
    <footer class="row"><a class="small" href=${href(["threads", hit.thread], { seq: hit.seq })}>${t("memories.event", { seq: hit.seq })}</a>
      <button class="button small quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>${t(open ? "recall.less" : "recall.why")}</button></footer>
    ${open && html`<div class="stack tight">${parts.map(([name, value]) => html`<${Meter} key=${name} label=${named("recall.parts", name)} value=${Math.abs(value)} most=${most} text=${number(value, 3)} kind=${value < 0 ? "bad" : COLOURS[/** @type {keyof typeof COLOURS} */ (name)] ?? "system"} />`)}
      <${Neighbours} thread=${hit.thread} seq=${hit.seq} /></div>`}
  </article>`;
}

/** Shows the turns around a hit. @param {{thread: string, seq: number}} props */
function Neighbours({ thread, seq }) {
  const { value, error, loading } = useLoad(async (signal) => {
    const address = path`/api/threads/${thread}/turns`;
    const [before, after] = await Promise.all([get(address, { query: { newest: true, limit: 3, before_seq: seq + 1 }, signal }), get(address, { query: { limit: 2, after_seq: seq }, signal })]);
    return [...before.items, ...after.items];
  }, [thread, seq]);
  return html`<h3>${t("recall.neighbours")}</h3><${Failure} error=${error} />
    ${loading && !value ? html`<${Loading} lines=${3} />` : value && html`<div class="neighbours"><${Turns} turns=${spoken(value)} markedSeq=${seq} /></div>`}`;
}

/** @param {{memory: any}} props */
function Remembered({ memory }) {
  const explain = memory.explain ?? {};
  const ways = Object.entries(explain).filter(([, each]) => each && typeof each === "object" && "value" in each);
  return html`<article class="card hit">
    <header class="row apart"><span class="row"><${Badge} tone="accent">${t(`kind.${memory.kind}`)}<//><span class="muted small">${day(memory.valid_from)}</span></span>
      <span class="number" title=${t("recall.relevance")}>${number(memory.relevance, 3)}</span></header>
    <a class="hit-text" dir="auto" href=${href(["memories"], { memory: memory.id })}>${clip(memory.content, 300)}</a>
    <div class="stack tight">
      ${ways.map(([name, way]) => html`<${Meter} key=${name} label=${named("recall.parts", name)} value=${way.value} text=${`${number(way.value, 2)} × ${number(way.weight, 1)}`} kind="2" />`)}
      ${explain.worth !== undefined && html`<${Meter} label=${t("recall.worth")} value=${explain.worth} kind="3" />`}
    </div>
  </article>`;
}

/** Shows the same search as a command and as a program. @param {{body: any}} props */
function Commands({ body }) {
  const [way, setWay] = useState("curl");
  const json = JSON.stringify(body);
  const { query, explain: _, ...rest } = body; // the Python client always asks for `explain`
  const more = Object.entries(rest).map(([name, value]) => `, ${name}=${value === true ? "True" : JSON.stringify(value)}`).join("");
  const text = way === "curl"
    ? `curl -s ${location.origin}/api/recall \\\n  -H "Authorization: Bearer $TURNLOG_TOKEN" \\\n  -H "Content-Type: application/json" \\\n  -d '${json.replaceAll("'", `'\\''`)}'`
    : `import os\n\nimport turnlog\n\nwith turnlog.connect(${JSON.stringify(location.origin)}, key=os.environ["TURNLOG_TOKEN"]) as memory:\n    recalled = memory.recall(${JSON.stringify(query)}${more})\n    print(recalled)`;
  return html`<section class="stack tight"><div class="row apart"><h2>${t("recall.same")}</h2>
    <${Segments} label=${t("recall.same")} value=${way} onChange=${setWay} options=${[["curl", "curl"], ["python", "Python"]]} /></div><${Code} text=${text} label=${way === "curl" ? "curl" : "Python"} /></section>`;
}
