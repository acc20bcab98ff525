// The screen that shows how much is stored of the signed-in person, or, for operators, of another person. It exports the data, clears parts of it and erases all of it.
import { html, useState } from "../html.js";
import { get, path, post, remove, send } from "../api.js";
import { t } from "../i18n.js";
import { useLoad } from "../load.js";
import { go } from "../router.js";
import { may, session } from "../session.js";
import { Badge, Failure, Head, Loading, Segments, Tile, useWrite } from "../parts/common.js";
import { confirm, prompt } from "../parts/dialog.js";
import { moment, number, short } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { Progress, followed } from "../parts/job.js";
import { Table } from "../parts/list.js";
import { Person } from "../parts/person.js";

const PARTS = [["includeMemories", "memories"], ["includeConversations", "conversations"], ["includeEntities", "entities"]];
const COUNTS = ["conversations", "memories", "entities", "runs", "preferences"];

/** @param {{query: Record<string, string>}} props */
export default function Privacy({ query }) {
  const own = session.get()?.caller.user ?? "";
  const user = query.user && query.user !== own ? query.user : undefined;
  const stored = useLoad((signal) => get("/api/user-data", { query: { user }, signal }), [user]);
  return html`<section class="screen">
    <${Head} title=${t("screens.privacy")} about=${user ? t("privacy.about_other", { user }) : t("privacy.about")}>
      ${may("operate") && html`<${Person} key=${user} user=${user} onChoose=${(/** @type {string} */ chosen) => go(["privacy"], { user: chosen })} />`}<//>
    <${Failure} error=${stored.error} retry=${stored.reload} />
    ${!stored.value ? html`<${Loading} />` : html`<section class="stack tight"><h2>${t("privacy.stored", { user: user ?? own })}</h2><div class="tiles">
      ${COUNTS.map((name) => html`<${Tile} key=${name} label=${t(`privacy.kinds.${name}`)} value=${number(stored.value[name])} />`)}
      <${Tile} label=${t("privacy.tokens")} value=${short(stored.value.tokens_in + stored.value.tokens_out)} title=${t("runs.tokens_in_out", { in: stored.value.tokens_in, out: stored.value.tokens_out })} /></div></section>`}
    <${Export} key=${`export ${user}`} user=${user} />
    <${Clear} key=${`clear ${user}`} user=${user} onChange=${stored.reload} />
    <${Erase} key=${`erase ${user}`} user=${user} name=${user ?? own} onDone=${stored.reload} />
  </section>`;
}

/** Returns the name with spaces around it, which Chinese text needs too; "you" without a name. @param {string | undefined} user */
const named = (user) => (user ? ` ${user} ` : t("privacy.you"));

/** @param {{user?: string}} props user: another person */
function Export({ user }) {
  const [level, setLevel] = useState("moderate");
  const [job, setJob] = useState(/** @type {any} */ (null));
  const [file, setFile] = useState(/** @type {string | null} */ (null));
  const [write, busy] = useWrite();
  const make = () => write(async () => {
    if (file) URL.revokeObjectURL(file);
    setFile(null);
    const done = await followed(await post("/api/export", { query: { user }, body: { level } }), setJob);
    if (done.state !== "done") return;
    setFile(URL.createObjectURL(await (await send("GET", path`/api/export/${done.id}`)).blob()));
  });
  return html`<section class="card stack tight"><h2>${t("privacy.export")}</h2><p class="muted">${t("privacy.export_about", { user: named(user) })}</p>
    <div class="row"><${Segments} label=${t("privacy.masked")} value=${level} onChange=${setLevel} options=${["light", "moderate", "full"].map((each) => [each, t(`privacy.levels.${each}`)])} />
      <button class="button" disabled=${busy} onClick=${make}>${t("privacy.make")}</button>
      ${file && html`<a class="button primary" href=${file} download="turnlog-export.json">${t("privacy.save")}</a>`}</div>
    ${job && html`<${Progress} job=${job} />`}</section>`;
}

/** @param {{user?: string, onChange: () => void}} props */
function Clear({ user, onChange }) {
  const [parts, setParts] = useState(/** @type {Record<string, boolean>} */ ({}));
  const [write, busy] = useWrite();
  const chosen = PARTS.filter(([name]) => parts[name]);
  const clear = async () => {
    const names = chosen.map(([, kind]) => t(`privacy.kinds.${kind}`)).join(", ");
    if (!(await confirm({ title: t("privacy.clear_title", { names }), text: t("privacy.clear_about"), action: t("privacy.clear"), danger: true }))) return;
    await write(() => remove("/api/user-data", { query: { user, ...Object.fromEntries(chosen.map(([name]) => [name, true])) } }), t("privacy.cleared"));
    onChange();
  };
  return html`<section class="card stack tight"><h2>${t("privacy.clear")}</h2><p class="muted">${t("privacy.clear_about")}</p>
    <div class="row privacy-parts">${PARTS.map(([name, kind]) => html`<label key=${name} class="check"><input type="checkbox" checked=${parts[name] ?? false} onChange=${(/** @type {any} */ event) => setParts({ ...parts, [name]: event.target.checked })} />${t(`privacy.kinds.${kind}`)}</label>`)}
      <button class="button" disabled=${busy || !chosen.length} onClick=${clear}>${t("privacy.clear")}</button></div></section>`;
}

/** @param {{user?: string, name: string, onDone: () => void}} props name: to be typed */
function Erase({ user, name, onDone }) {
  const [job, setJob] = useState(/** @type {any} */ (null));
  const [wrong, setWrong] = useState(false);
  const [write, busy] = useWrite();
  const erase = async () => {
    const typed = await prompt({ title: t("privacy.erase_title", { user: named(user) }), text: t("privacy.erase_sure", { user: name }), label: t("privacy.name"), action: t("privacy.erase"), danger: true });
    if (typed === null) return;
    setWrong(typed.trim() !== name);
    if (typed.trim() !== name) return;
    await write(async () => { await followed(await post("/api/erase", { query: { user }, body: {} }), setJob); });
    onDone();
  };
  return html`<section class="card stack tight danger-zone"><h2>${t("privacy.erase_title", { user: named(user) })}</h2><p class="muted">${t("privacy.erase_about", { user: named(user) })}</p>
    <div class="row"><button class="button danger" disabled=${busy} onClick=${erase}>${t("privacy.erase")}</button>${wrong && html`<span class="tone-bad" role="alert">${t("privacy.wrong_name")}</span>`}</div>
    ${job && (job.state === "done" ? html`<${Receipt} receipt=${job.result} />` : html`<${Progress} job=${job} />`)}</section>`;
}

/** Shows what was destroyed, and what the scan found afterwards. @param {{receipt: any}} props */
function Receipt({ receipt }) {
  const { data, hits } = receipt;
  const left = Object.entries(hits);
  const counts = Object.entries(data.counts).filter(([, count]) => count);
  return html`<section class="receipt stack tight" aria-label=${t("privacy.receipt")} role="region"><div class="row"><h3>${t("privacy.receipt")}</h3>
      <${Badge} tone=${left.length ? "bad" : "good"}><${Icon} name=${left.length ? "warning" : "check"} />${left.length ? t("privacy.left") : t("privacy.nothing_left")}<//></div>
    <div class="tiles"><div class="tile"><span class="tile-label">${t("privacy.keys")}</span><b class="tile-value number">${number(data.keys_destroyed)}</b></div>
      <div class="tile"><span class="tile-label">${t("privacy.kinds.conversations")}</span><b class="tile-value number">${number(data.threads)}</b></div>
      <div class="tile"><span class="tile-label">${t("privacy.searched")}</span><b class="tile-value number">${number(data.strings_searched)}</b></div>
      <div class="tile"><span class="tile-label">${t("privacy.found")}</span><b class="tile-value number">${number(data.hits)}</b></div></div>
    ${counts.length > 0 && html`<${Table} label=${t("privacy.removed")} items=${counts} keyOf=${(/** @type {any} */ each) => each[0]} columns=${[[t("privacy.place"), (/** @type {any} */ each) => each[0]], [t("privacy.removed"), (/** @type {any} */ each) => number(each[1]), "number"]]} />`}
    ${Object.keys(data.scanned).length > 0 && html`<${Table} label=${t("privacy.scanned")} items=${Object.entries(data.scanned)} keyOf=${(/** @type {any} */ each) => each[0]} columns=${[[t("privacy.place"), (/** @type {any} */ each) => each[0]], [t("privacy.scanned"), (/** @type {any} */ each) => number(each[1]), "number"], [t("privacy.found"), (/** @type {any} */ each) => number(hits[each[0]] ?? 0), "number"]]} />`}
    <p class="muted small number">${t("context.seq", { seq: receipt.seq })} · ${moment(new Date())} · <code>${receipt.thread}</code></p></section>`;
}
