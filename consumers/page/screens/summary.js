// The screen of a conversation's topics and summaries: for each version of the summary, what it covers, what changed and what made it.
import { html, useMemo, useState } from "../html.js";
import { get, path } from "../api.js";
import { t } from "../i18n.js";
import { useLoad } from "../load.js";
import { href } from "../router.js";
import { useTail } from "../tail.js";
import { Meter } from "../parts/bars.js";
import { Empty, Failure, Loading, Segments, Time } from "../parts/common.js";
import { ago, cost, number } from "../parts/format.js";

const TYPES = ["summary_written", "topics_tagged"];
const MOST_WORDS = 1500; // words of a text that are compared

/** @param {{thread: string}} props */
export default function SummaryScreen({ thread }) {
  const { items, error, settled } = useTail(path`/api/threads/${thread}/events`, { type: TYPES });
  const { versions, topics } = useMemo(() => derivedOf(items), [items]);
  const newest = useLoad((signal) => get(path`/api/threads/${thread}/turns`, { query: { limit: 1, newest: true }, signal }), [thread]);
  const [chosen, setChosen] = useState(/** @type {number | null} */ (null));
  const [view, setView] = useState("text");
  if (error && error.status !== 404) return html`<div class="screen"><${Failure} error=${error} /></div>`;
  const last = Math.max(newest.value?.items[0]?.seq ?? 0, versions[0]?.covered ?? 0);
  if (!settled) return html`<div class="screen"><${Loading} lines=${8} /></div>`;
  if (!versions.length && !topics.length) return html`<${Empty} icon="summary" title=${t("summary.none")}>${t("summary.none_about")}<//>`;
  const at = Math.max(0, versions.findIndex((each) => each.seq === chosen));
  const [shown, before] = [versions[at], versions[at + 1]];
  return html`<div class="context-scroll"><section class="screen"><p class="muted">${t("summary.about")}</p>
    <div class="summary-columns">
      <div class="stack">${shown && html`<section class="card stack" aria-label=${t("summary.version")}>
        <div class="row apart"><h2>${t("summary.version_n", { n: versions.length - at })}</h2>${before && html`<${Segments} label=${t("context.view")} value=${view} onChange=${setView} options=${[["text", t("summary.text")], ["changes", t("summary.changes")]]} />`}</div>
        <p class="summary-text" dir="auto">${view === "changes" && before ? changed(before.text, shown.text).map(([kind, words], place) => (kind === "same" ? html`<span key=${place}>${words}</span>` : html`<${kind} key=${place}>${words}<//>`)) : shown.text || t("seen.forgotten")}</p>
        <${Meter} label=${t("summary.covers", { n: shown.messages })} value=${shown.covered} most=${last} text=${t("summary.of_log", { covered: shown.covered, seq: last })} />
        <dl class="facts"><dt>${t("access.model")}</dt><dd>${shown.made.model ?? "–"}</dd><dt>${t("summary.prompt")}</dt><dd><code>${shown.made.prompt_hash ?? "–"}</code></dd>
          <dt>${t("summary.turns")}</dt><dd class="number">${shown.made.from_seq ?? "–"} – ${shown.made.through_seq ?? "–"}</dd>
          <dt>${t("runs.cost")}</dt><dd>${cost(shown.made.cost_usd ?? 0)} · ${t("runs.tokens_in_out", { in: shown.made.tokens_in ?? 0, out: shown.made.tokens_out ?? 0 })}</dd></dl>
        <a href=${href(["threads", thread, "context"], { seq: shown.covered })}>${t("events.in_context")}</a></section>`}
        ${versions.length > 1 && html`<section class="card stack tight"><h2>${t("summary.versions")}</h2><ol class="stack tight">${versions.map((each, place) => html`<li key=${each.seq}>
          <button type="button" class="chain-version row" aria-current=${place === at ? "true" : null} onClick=${() => setChosen(each.seq)}><b>${t("summary.version_n", { n: versions.length - place })}</b>
            <span class="muted small number">${t("threads.messages", { n: each.messages })}</span><span class="faint small"><${Time} time=${each.time}>${ago(each.time)}<//></span></button></li>`)}</ol></section>`}</div>
      <section class="card stack tight" aria-label=${t("summary.topics")}><h2>${t("summary.topics")} <span class="muted number">${topics.length}</span></h2>
        ${topics.length ? topics.slice(0, 40).map(([name, count]) => html`<${Meter} key=${name} label=${name} value=${count} most=${topics[0][1]} kind="2" text=${number(count)} />`) : html`<p class="muted">${t("summary.no_topics")}</p>`}</section>
    </div></section></div>`;
}

/** Returns the versions of the summary, newest first, and the topics, most mentioned first. @param {any[]} items
 * @returns {{versions: any[], topics: [string, number][]}} */
function derivedOf(items) {
  const versions = /** @type {any[]} */ ([]);
  const topics = /** @type {Map<string, number>} */ (new Map());
  for (const { type, seq, stored_at: time, event } of items) {
    const body = event?.data;
    if (type === "summary_written" && body) versions.unshift({ seq, time, text: body.summary, messages: body.message_count, covered: body.covered_seq, made: body.derivation ?? {} });
    if (type === "topics_tagged" && body) for (const [name, count] of Object.entries(body.topics)) topics.set(name, (topics.get(name) ?? 0) + /** @type {number} */ (count));
  }
  return { versions, topics: [...topics].sort((one, other) => other[1] - one[1]) };
}

// Scripts without spaces between words.
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}]/u;

/** Returns the first MOST_WORDS words of a text, each with the spaces after it. @param {string} text @returns {string[]} */
function wordsOf(text) {
  const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });
  return text.split(/(?<=\s)(?=\S)/).flatMap((word) => (UNSPACED.test(word) ? Array.from(segmenter.segment(word), ({ segment }) => segment) : [word])).slice(0, MOST_WORDS);
}

/** Returns the differences between two texts as [same | ins | del, words], by their longest common subsequence of words.
 * @param {string} before @param {string} after @returns {[string, string][]} */
function changed(before, after) {
  const [a, b] = [wordsOf(before), wordsOf(after)];
  const [ofA, ofB] = [a, b].map((words) => words.map((word) => word.trimEnd())); // without spaces, so that other line breaks make no difference
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) common[i][j] = ofA[i] === ofB[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const parts = /** @type {[string, string][]} */ ([]);
  const add = (/** @type {string} */ kind, /** @type {string} */ word) => {
    const end = parts.at(-1);
    if (end && end[0] === kind) end[1] += word;
    else parts.push([kind, word]);
  };
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    if (i < a.length && j < b.length && ofA[i] === ofB[j]) { add("same", b[j]); i++; j++; }
    else if (j >= b.length || (i < a.length && common[i + 1][j] >= common[i][j + 1])) add("del", a[i++]);
    else add("ins", b[j++]);
  }
  return parts;
}
