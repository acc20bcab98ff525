// The screen of the caller's memories, or, for operators, those of another person (read only): open contradictions, memories by kind and tier, one memory in detail, the profile and the entities.
import { html, useEffect, useState } from "../html.js";
import { get, path, post } from "../api.js";
import { named, t } from "../i18n.js";
import { useLoad, usePages } from "../load.js";
import { go, href } from "../router.js";
import { Legend, StackedBar } from "../parts/bars.js";
import { Badge, Empty, Failure, Head, Loading, Search, Segments, useWrite } from "../parts/common.js";
import { prompt } from "../parts/dialog.js";
import { clip, day, moment, number, short } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { Graph } from "../parts/graph.js";
import { WindowedList } from "../parts/list.js";
import { Memory } from "../parts/memory.js";
import { Person } from "../parts/person.js";
import { may, session } from "../session.js";

const KINDS = ["FACT", "PREFERENCE", "DECISION", "SUMMARY", "FEEDBACK"];
const TIERS = { WORKING: "3", SHORT: "2", LONG: "1", ARCHIVE: "system" };
const ROW = 60;

/** @param {{query: Record<string, string>}} props */
export default function Memories({ query }) {
  const user = query.user && query.user !== session.get()?.caller.user ? query.user : undefined;
  const views = [["list", t("screens.memories")], ...(user ? [] : [["profile", t("memories.profile")]]), ["entities", t("memories.entities")]];
  const view = views.some(([name]) => name === query.view) ? query.view : "list";
  const setView = (/** @type {string} */ chosen) => go(["memories"], { user, view: chosen === "list" ? null : chosen }, { replace: true });
  const [changes, setChanges] = useState(0);
  const [write, busy] = useWrite();
  const changed = () => setChanges((before) => before + 1);
  const remember = async () => {
    const content = await prompt({ title: t("memories.remember"), label: t("memories.content"), multiline: true, action: t("memories.remember") });
    if (content) write(async () => { await post("/api/memories", { body: { content } }); changed(); }, t("memories.remembered"));
  };
  return html`<section class="screen full memories">
    <${Head} title=${t("screens.memories")} about=${user ? t("memories.about_other", { user }) : t("memories.about")}>
      ${may("operate") && html`<${Person} key=${user} user=${user} onChoose=${(/** @type {string} */ chosen) => go(["memories"], { user: chosen, view: query.view })} />`}
      <${Segments} label=${t("memories.view")} value=${view} onChange=${setView} options=${views} />
      ${!user && html`<button class="button primary" disabled=${busy} onClick=${remember}><${Icon} name="plus" />${t("memories.remember")}</button>`}
    <//>
    ${view === "entities" ? html`<${Graph} key=${user} user=${user} />`
      : view === "profile" ? html`<${Profile} changes=${changes} line=${query.line} />`
      : html`<${List} key=${user} user=${user} changes=${changes} selected=${query.memory ?? null} onChanged=${changed} />`}
  </section>`;
}

/** @param {{user?: string, changes: number, selected: string | null, onChanged: () => void}} props changes: a number that grows with each change of a memory */
function List({ user, changes, selected, onChanged }) {
  const [kind, setKind] = useState("");
  const [tier, setTier] = useState(/** @type {string | null} */ (null));
  const [every, setEvery] = useState(false);
  const [words, setWords] = useState("");
  const list = usePages("/api/memories", { limit: 200, kind, every: every || null, user }, changes);
  const { value: stats } = useLoad((signal) => get("/api/memory-stats", { query: { user }, signal }), [changes]);
  const { value: stored } = useLoad((signal) => get("/api/user-data", { query: { user }, signal }), [changes]);
  const conflicts = useLoad((signal) => get("/api/conflicts", { query: { user }, signal }), [changes]);
  const sought = words.trim().toLowerCase();
  const shown = list.items.filter((each) => (!tier || each.score.tier === tier) && (!sought || each.content.toLowerCase().includes(sought)));
  useEffect(() => {
    if ((tier || sought) && shown.length < 20 && !list.complete && !list.loading) list.more(); // reads on, because the filter must search all memories
  }, [tier, sought, list.items.length, list.loading]);
  const parts = Object.entries(TIERS).map(([name, colour]) => ({ key: name, kind: colour, label: t(`tiers.${name}`), value: stats?.by_tier[name] ?? 0 }));
  const open = (/** @type {string | null} */ id) => go(["memories"], { user, memory: id }, { replace: true });
  return html`
    <${Conflicts} conflicts=${conflicts.value?.items ?? []} error=${conflicts.error} user=${user} onAnswered=${onChanged} />
    ${stats?.total_memories > 0 && html`<div class="card memory-stats">
      <${StackedBar} parts=${parts} label=${t("memories.by_tier")} active=${tier} onChoose=${(/** @type {string} */ name) => setTier(name === tier ? null : name)} />
      <div class="row apart"><${Legend} parts=${parts} active=${tier} />
        <span class="muted small number">${[
          stored && t("memories.tokens_used", { n: short(stored.tokens_in + stored.tokens_out) }),
          stats.scheduled_for_archive > 0 && t("memories.will_archive", { n: stats.scheduled_for_archive, time: day(stats.next_due_at) }),
          stats.scheduled_for_expiry > 0 && t("memories.will_end", { n: stats.scheduled_for_expiry, time: day(stats.next_due_at) }),
        ].filter(Boolean).join(" · ")}</span></div>
    </div>`}
    <div class="row memory-filters">
      <${Search} label=${t("memories.filter")} value=${words} onInput=${setWords} />
      <${Segments} label=${t("memories.kind")} value=${kind} onChange=${setKind} options=${[["", t("memories.all")], ...KINDS.map((each) => [each, t(`kinds.${each}`)])]} />
      <label class="field inline"><span class="sr">${t("memories.by_tier")}</span>
        <select value=${tier ?? ""} onChange=${(/** @type {any} */ event) => setTier(event.target.value || null)}>
          <option value="">${t("memories.every_tier")}</option>${Object.keys(TIERS).map((each) => html`<option key=${each} value=${each}>${t(`tiers.${each}`)}</option>`)}</select></label>
      <label class="check"><input type="checkbox" checked=${every} onChange=${(/** @type {any} */ event) => setEvery(event.target.checked)} />${t("memories.ended_too")}</label>
    </div>
    <${Failure} error=${list.error} retry=${list.reload} />
    <div class="memory-columns ${selected ? "with-detail" : ""}">
      ${list.loading && !list.items.length ? html`<${Loading} lines=${8} />`
        : shown.length ? html`<${WindowedList} className="card-list" items=${shown} height=${ROW} keyOf=${(/** @type {any} */ each) => each.id} label=${t("screens.memories")} onEnd=${list.more}
            row=${(/** @type {any} */ memory) => html`<${Row} memory=${memory} selected=${memory.id === selected} onOpen=${() => open(memory.id === selected ? null : memory.id)} />`} />`
        : !list.error && (sought || tier || kind ? html`<${Empty} icon="search" title=${t("memories.none_found")} />`
          : html`<${Empty} icon="memories" title=${t("memories.none")}>${user ? null : t("memories.none_about")}<//>`)}
      ${selected && html`<${Memory} key=${selected} id=${selected} user=${user} changes=${changes} onClose=${() => open(null)} onChanged=${onChanged} onOpen=${open} />`}
    </div>`;
}

/** @param {{memory: any, selected: boolean, onOpen: () => void}} props */
function Row({ memory, selected, onOpen }) {
  const { score } = memory;
  return html`<button class="memory-row" aria-pressed=${selected} onClick=${onOpen}>
    <i class="memory-tier bar-${TIERS[/** @type {keyof typeof TIERS} */ (score.tier)]}" title=${t(`tiers.${score.tier}`)} />
    <span class="memory-words"><b class="clip" dir="auto">${clip(memory.content, 200) || t("seen.forgotten")}</b>
      <span class="clip muted small">${t(`kind.${memory.kind}`)}${memory.category ? ` · ${named("categories", memory.category)}` : ""} · ${t("memories.since", { time: day(memory.valid_from) })}${memory.valid_to ? ` ${t("memories.until", { time: day(memory.valid_to) })}` : ""}</span></span>
    ${memory.status !== "valid" && html`<${Badge} tone=${memory.status === "pending" ? "warn" : "quiet"}>${named("memories.status", memory.status === "closed" ? memory.closed_reason : memory.status)}<//>`}
    <span class="memory-score" title=${t("memories.score")}><span class="meter-track"><span class="meter-fill bar-accent" style=${{ width: `${score.total * 100}%` }} /></span><span class="number small">${number(score.total, 2)}</span></span>
  </button>`;
}

/** Shows contradictions that only the person can decide. @param {{conflicts: any[], error: Error | null, user?: string, onAnswered: () => void}} props */
function Conflicts({ conflicts, error, user, onAnswered }) {
  const [write, busy] = useWrite();
  if (error) return html`<${Failure} error=${error} />`;
  return conflicts.map((conflict) => html`<div key=${conflict.conflict_id} class="card conflict" role="group" aria-label=${t("memories.conflict")}>
    <${Badge} tone="warn"><${Icon} name="warning" />${t("memories.conflict")}<//>
    ${user ? html`<span class="grow" dir="auto">${conflict.question}</span>` : html`<${ConflictAnswers} conflict=${conflict} busy=${busy} onAnswer=${(/** @type {string} */ answer) =>
      write(async () => { await post(path`/api/conflicts/${conflict.conflict_id}/answer`, { body: { answer } }); onAnswered(); }, t("memories.answered"))} />`}
  </div>`);
}

/** Shows the two claims of a contradiction side by side, as buttons to choose one or both. @param {{conflict: any, busy: boolean, onAnswer: (answer: string) => void}} props */
function ConflictAnswers({ conflict, busy, onAnswer }) {
  const { value } = useLoad((signal) => Promise.all([conflict.memory_id, ...conflict.against].map((id) => get(path`/api/memories/${id}`, { signal }).catch(() => null))), [conflict.conflict_id]);
  const [added, ...before] = value ?? [];
  const claim = (/** @type {string} */ answer, /** @type {any[]} */ memories) => html`<button class="button claim" disabled=${busy} onClick=${() => onAnswer(answer)}>
    <span class="muted small">${t(`memories.${answer}`)}</span><b dir="auto">${memories.filter(Boolean).map((memory) => clip(memory.content, 80)).join(" · ")}</b></button>`;
  return html`<div class="claims">${claim("old", before)}${claim("new", [added])}
    <button class="button" disabled=${busy} onClick=${() => onAnswer("both")}>${t("memories.both")}</button></div>`;
}

/** Shows the caller's profile: the text that a model wrote, each sentence with links to its lines, and below it the lines. @param {{changes: number, line?: string}} props line: the memory whose line is shown */
function Profile({ changes, line }) {
  const { value: profile, error, reload } = useLoad((signal) => get("/api/profile", { query: { max_tokens: 4000 }, signal }), [changes]);
  useEffect(() => document.getElementById(`line-${line}`)?.scrollIntoView({ block: "center" }), [line, profile]);
  if (!profile) return error ? html`<${Failure} error=${error} retry=${reload} />` : html`<${Loading} lines=${8} />`;
  if (!profile.groups.length) return html`<${Empty} icon="memories" title=${t("memories.none")}>${t("memories.none_about")}<//>`;
  const numbers = new Map(profile.groups.flatMap((/** @type {any} */ group) => group.lines).map((/** @type {any} */ each, /** @type {number} */ at) => [each.memory, at + 1]));
  const cited = (/** @type {string} */ id) => html` <a key=${id} class="number small" aria-label=${t("memories.line", { n: numbers.get(id) ?? "…" })}
    href=${href(["memories"], numbers.has(id) ? { view: "profile", line: id } : { memory: id })}>[${numbers.get(id) ?? "…"}]</a>`;
  return html`<article class="card stack profile">
    ${profile.written && html`<section class="stack tight" aria-label=${t("memories.written")}>
      ${profile.written.sentences.map((/** @type {any} */ sentence) => html`<p key=${sentence.text} class="memory-content"><span dir="auto">${sentence.text}</span>${sentence.memories.map(cited)}</p>`)}
      <p class="muted small" dir="auto">${t("memories.written_by", { model: profile.written.model, time: moment(profile.written.written_at) })}</p></section>`}
    ${profile.groups.map((/** @type {any} */ group) => html`<section key=${group.name} class="stack tight"><h2>${t(`memories.groups.${group.name}`)}</h2>
      <ol class="stack tight" start=${numbers.get(group.lines[0].memory)}>${group.lines.map((/** @type {any} */ each) => html`<li key=${each.memory} id=${`line-${each.memory}`} aria-current=${each.memory === line ? "true" : null}>
        <a href=${href(["memories"], { memory: each.memory })} dir="auto">${each.text}</a>
        ${each.sources.map((/** @type {any} */ source) => html`<span key=${source.event_id} class="muted small"> “<bdi>${source.quote}</bdi>” <a href=${href(["threads", source.thread], { seq: source.seq })}>${t("memories.event", { seq: source.seq })}</a></span>`)}</li>`)}</ol></section>`)}
    ${profile.left_out > 0 && html`<p class="muted small">${t("memories.left_out", { n: profile.left_out })}</p>`}
  </article>`;
}
