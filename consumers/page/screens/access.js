// The screen for administrators: API keys, agents, limits of each plan, and circuit breakers.
import { html, useState } from "../html.js";
import { get, patch, path, post, put, remove } from "../api.js";
import { agentName, named, t } from "../i18n.js";
import { firstPages, useLoad } from "../load.js";
import { may, session } from "../session.js";
import { Badge, Code, Failure, Field, Head, IconButton, Loading, Time, useWrite } from "../parts/common.js";
import { Dialog, confirm } from "../parts/dialog.js";
import { ago, day, listed, moment, number } from "../parts/format.js";
import { Icon } from "../parts/icons.js";
import { Table } from "../parts/list.js";

const STATES = /** @type {Record<string, any>} */ ({ closed: "good", "half-open": "warn", open: "bad" });

export default function Access() {
  return html`<section class="screen">
    <${Head} title=${t("screens.access")} about=${t("access.about")} />
    <${OwnToken} />
    ${may("keys") && html`<${Keys} />`}
    ${may("operate") && html`<${Agents} /><${Quotas} /><${Breakers} />`}
  </section>`;
}

function OwnToken() {
  const caller = session.get()?.caller;
  if (!caller) return null;
  return html`<section class="card stack tight"><h2>${t("access.token")}</h2>
    <dl class="facts"><dt>${t("access.user")}</dt><dd dir="auto">${caller.user} <span class="muted">(${caller.tenant})</span></dd><dt>${t("access.role")}</dt><dd>${caller.role}</dd>
      <dt>${t("access.scopes")}</dt><dd class="row">${caller.scopes.map((scope) => html`<${Badge} key=${scope}>${scope}<//>`)}</dd>
      <dt>${t("access.ends")}</dt><dd>${caller.expires_at ? moment(caller.expires_at) : t("access.never")}</dd></dl>
    ${!session.get()?.token.startsWith("tl_") && html`<p class="muted">${t("access.token_about")}</p>`}</section>`;
}

function Keys() {
  const [pages, setPages] = useState(1);
  const keys = useLoad((signal) => firstPages("/api/operations/keys", pages, signal), [pages]);
  const [making, setMaking] = useState(false);
  const [write, busy] = useWrite();
  const revoke = async (/** @type {any} */ key) => {
    if (!(await confirm({ title: t("access.revoke_title", { name: key.label || key.id }), text: t("access.revoke_about"), action: t("access.revoke"), danger: true }))) return;
    await write(() => remove(path`/api/operations/keys/${key.id}`), t("access.revoked"));
    keys.reload();
  };
  return html`<section class="stack tight"><div class="row apart"><h2>${t("access.keys")}</h2><button class="button" onClick=${() => setMaking(true)}><${Icon} name="plus" />${t("access.new_key")}</button></div>
    <${Failure} error=${keys.error} retry=${keys.reload} />
    ${keys.loading && !keys.value ? html`<${Loading} />` : keys.value && (!keys.value.items.length ? html`<p class="card muted">${t("access.no_keys")}</p>` : html`<${Table} label=${t("access.keys")} items=${keys.value.items} keyOf=${(/** @type {any} */ key) => key.id} columns=${[
      [t("access.key"), (/** @type {any} */ key) => html`<b dir="auto">${key.label || "–"}</b> <code class="faint">${key.id}</code>`],
      [t("access.user"), (/** @type {any} */ key) => html`<span dir="auto">${key.user}</span> <span class="muted">${key.role}</span>`],
      [t("access.scopes"), (/** @type {any} */ key) => key.scopes.join(", ")],
      [t("access.used"), (/** @type {any} */ key) => (key.used_at ? html`<${Time} time=${key.used_at}>${ago(key.used_at)}<//>` : t("access.never"))],
      [t("access.ends"), (/** @type {any} */ key) => (key.expires_at ? day(key.expires_at) : t("access.never"))],
      ["", (/** @type {any} */ key) => (key.revoked_at ? html`<${Badge}>${t("access.revoked")}<//>` : html`<button class="button small" disabled=${busy} onClick=${() => revoke(key)}>${t("access.revoke")}</button>`)],
    ]} />`)}
    ${keys.value?.more && html`<p><button class="button small" onClick=${() => setPages(pages + 1)}>${t("operation.more")}</button></p>`}
    ${making && html`<${NewKey} onClose=${() => { setMaking(false); keys.reload(); }} />`}</section>`;
}

/** @param {{onClose: () => void}} props */
function NewKey({ onClose }) {
  const caller = session.get()?.caller;
  const [grant, setGrant] = useState({ user: caller?.user ?? "", role: "user", label: "", days: "" });
  const [made, setMade] = useState(/** @type {any} */ (null));
  const [write, busy] = useWrite();
  const change = (/** @type {string} */ name) => (/** @type {any} */ event) => setGrant({ ...grant, [name]: event.target.value });
  const make = (/** @type {any} */ event) => {
    event.preventDefault();
    write(async () => setMade(await post("/api/operations/keys", { body: { user: grant.user, role: grant.role, label: grant.label || null, days: grant.days ? Number(grant.days) : null } })));
  };
  return html`<${Dialog} title=${t("access.new_key")} onClose=${onClose}>
    ${made ? html`<div class="stack"><p>${t("access.once")}</p><${Code} label=${t("access.key")} text=${made.key} /><div class="actions"><button class="button primary" onClick=${onClose}>${t("close")}</button></div></div>`
      : html`<form class="stack" onSubmit=${make}>
        <${Field} label=${t("access.user")}><input required value=${grant.user} onInput=${change("user")} /><//>
        <${Field} label=${t("access.label")}><input value=${grant.label} onInput=${change("label")} /><//>
        <${Field} label=${t("access.role")}><select value=${grant.role} onChange=${change("role")}>${["user", "vip", "admin"].map((role) => html`<option key=${role} value=${role}>${role}</option>`)}</select><//>
        <${Field} label=${t("access.days")} hint=${t("access.days_about")}><input type="number" min="1" max="36500" value=${grant.days} onInput=${change("days")} /><//>
        <div class="actions"><button type="button" class="button" onClick=${onClose}>${t("cancel")}</button><button class="button primary" disabled=${busy}>${t("access.make")}</button></div></form>`}
  <//>`;
}

function Agents() {
  const agents = useLoad((signal) => get("/admin/ai-agent/agents", { signal }), []);
  const [changing, setChanging] = useState(/** @type {any} */ (null));
  const [write, busy] = useWrite();
  const nameOf = (/** @type {string} */ type) => agentName(agents.value.find((/** @type {any} */ each) => each.type === type) ?? { type, name: type });
  const show = (/** @type {any} */ changed) => agents.set(agents.value.map((/** @type {any} */ each) => (each.type === changed.type ? changed : each)));
  const turn = (/** @type {any} */ agent) => write(async () => show(await put(path`/admin/ai-agent/agents/${agent.type}/toggle`, { body: { enabled: !agent.enabled } })));
  return html`<section class="stack tight"><h2>${t("access.agents")}</h2><${Failure} error=${agents.error} retry=${agents.reload} />
    ${agents.value && html`<${Table} label=${t("access.agents")} items=${agents.value} keyOf=${(/** @type {any} */ agent) => agent.type} columns=${[
      [t("access.agent"), (/** @type {any} */ agent) => html`<b dir="auto">${agentName(agent)}</b> <code class="faint">${agent.type}</code>`],
      [t("access.model"), (/** @type {any} */ agent) => agent.model],
      [t("access.tools"), (/** @type {any} */ agent) => number(agent.tools.length), "number"],
      [t("access.delegates"), (/** @type {any} */ agent) => listed(agent.delegates.map(nameOf)) || "–"],
      [t("access.on"), (/** @type {any} */ agent) => html`<button type="button" role="switch" class="switch" aria-checked=${agent.enabled} aria-label=${t("access.turn", { agent: agentName(agent) })} disabled=${busy} onClick=${() => turn(agent)}><span /></button>`],
      ["", (/** @type {any} */ agent) => html`<${IconButton} label=${t("access.change", { agent: agentName(agent) })} icon="edit" onClick=${() => setChanging(agent)} />`],
    ]} />`}
    ${changing && html`<${ChangeAgent} agent=${changing} nameOf=${nameOf} others=${agents.value.map((/** @type {any} */ each) => each.type).filter((/** @type {string} */ type) => type !== changing.type)} onChange=${show} onClose=${() => setChanging(null)} />`}</section>`;
}

/** Lets an administrator change an agent; sends only changed values. An emptied text or number restores the value of the team's files or of the settings.
 * @param {{agent: any, others: string[], nameOf: (type: string) => string, onChange: (agent: any) => void, onClose: () => void}} props */
function ChangeAgent({ agent, others, nameOf, onChange, onClose }) {
  const tools = useLoad((signal) => get("/admin/ai-agent/tools", { signal }), []);
  const [values, setValues] = useState(/** @type {Record<string, any>} */ ({}));
  const [write, busy] = useWrite();
  const now = { ...agent, ...values };
  const set = (/** @type {string} */ name, /** @type {any} */ value) => setValues({ ...values, [name]: value });
  const text = (/** @type {string} */ name) => ({ value: now[name] ?? "", onInput: (/** @type {any} */ event) => set(name, event.target.value || null) });
  const figure = (/** @type {string} */ name) => ({ type: "number", value: now[name] ?? "", onInput: (/** @type {any} */ event) => set(name, event.target.value === "" ? null : Number(event.target.value)) });
  const choice = (/** @type {string} */ name, /** @type {string[]} */ all, shown = (/** @type {string} */ each) => each) => all.length > 0 && html`<fieldset class="choices"><legend class="field-label">${t(`access.${name}`)}</legend>
    ${all.map((each) => html`<label key=${each} class="check"><input type="checkbox" checked=${now[name].includes(each)}
      onChange=${(/** @type {any} */ event) => set(name, event.target.checked ? [...now[name], each] : now[name].filter((/** @type {string} */ other) => other !== each))} />${shown(each)}</label>`)}</fieldset>`;
  const save = async (/** @type {any} */ send) => {
    if (await write(async () => onChange(await send()), t("access.agent_saved"))) onClose();
  };
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    save(() => patch(path`/admin/ai-agent/agents/${agent.type}`, { body: values }));
  };
  return html`<${Dialog} wide title=${t("access.change", { agent: agentName(agent) })} onClose=${onClose}>
    <form class="stack" onSubmit=${submit}>
      <p class="muted">${t("access.empty_about")}</p>
      <${Field} label=${t("access.name")}><input dir="auto" maxlength="200" ...${text("name")} /><//>
      <${Field} label=${t("access.prompt")}><textarea dir="auto" rows="8" maxlength="100000" ...${text("systemPrompt")} /><//>
      <div class="row figures"><${Field} label=${t("access.model")}><input maxlength="200" ...${text("model")} /><//>
        <${Field} label=${t("access.temperature")}><input min="0" max="2" step="any" ...${figure("temperature")} /><//>
        <${Field} label=${t("access.max_tokens")}><input min="1" max="1000000" ...${figure("maxTokens")} /><//></div>
      <${Failure} error=${tools.error} retry=${tools.reload} />
      ${tools.value && choice("tools", tools.value)}
      ${choice("delegates", others, nameOf)}
      <div class="actions"><button type="button" class="button" disabled=${busy} onClick=${() => save(() => put(path`/admin/ai-agent/agents/${agent.type}`, { body: {} }))}>${t("access.reset")}</button>
        <button type="button" class="button" onClick=${onClose}>${t("cancel")}</button>
        <button class="button primary" disabled=${busy || !Object.keys(values).length}>${t("save")}</button></div></form>
  <//>`;
}

function Quotas() {
  const limits = useLoad((signal) => get("/api/operations/limits", { signal }), []);
  const [changed, setChanged] = useState(/** @type {Record<string, string>} */ ({}));
  const [write, busy] = useWrite();
  if (!limits.value) return html`<${Failure} error=${limits.error} retry=${limits.reload} />`;
  const plans = Object.keys(limits.value);
  const names = [...new Set(plans.flatMap((plan) => Object.keys(limits.value[plan])))];
  const save = () => write(async () => {
    for (const plan of plans) {
      const body = Object.fromEntries(Object.entries(changed).filter(([key]) => key.startsWith(`${plan}/`)).map(([key, value]) => [key.slice(plan.length + 1), Number(value)]));
      if (Object.keys(body).length) limits.set(await put(path`/api/operations/limits/${plan}`, { body }));
    }
    setChanged({});
  }, t("access.saved"));
  return html`<section class="stack tight"><div class="row apart"><h2>${t("access.quotas")}</h2><button class="button" disabled=${busy || !Object.keys(changed).length} onClick=${save}>${t("save")}</button></div>
    <${Table} label=${t("access.quotas")} items=${names} keyOf=${(/** @type {string} */ name) => name} columns=${[
      [t("access.limit"), (/** @type {string} */ name) => named("operation.limits", name)],
      ...plans.map((plan) => [named("access.plans", plan), (/** @type {string} */ name) => html`<input type="number" min="0" step="any" class="limit" aria-label=${`${named("access.plans", plan)}: ${named("operation.limits", name)}`}
        value=${changed[`${plan}/${name}`] ?? limits.value[plan][name]} onInput=${(/** @type {any} */ event) => setChanged({ ...changed, [`${plan}/${name}`]: event.target.value })} />`]),
    ]} /></section>`;
}

function Breakers() {
  const breakers = useLoad((signal) => get("/admin/ai-agent/circuit-breakers", { signal }), []);
  const [write, busy] = useWrite();
  const close = (/** @type {any} */ service) => write(async () => { await remove(path`/admin/ai-agent/circuit-breakers/${service}`); breakers.reload(); }, t("access.closed"));
  const open = (breakers.value ?? []).filter((/** @type {any} */ circuit) => circuit.state !== "closed");
  const closed = (breakers.value ?? []).filter((/** @type {any} */ circuit) => circuit.state === "closed");
  return html`<section class="stack tight"><h2>${t("access.breakers")}</h2><p class="muted">${t("access.breakers_about")}</p><${Failure} error=${breakers.error} retry=${breakers.reload} />
    ${breakers.value && !breakers.value.length && html`<p class="card muted">${t("access.no_breakers")}</p>`}
    ${open.length > 0 && html`<${Table} label=${t("access.breakers")} items=${open} keyOf=${(/** @type {any} */ circuit) => circuit.service} columns=${[
      [t("access.service"), (/** @type {any} */ circuit) => html`<b>${circuit.service}</b>`],
      [t("access.state"), (/** @type {any} */ circuit) => html`<${Badge} tone=${STATES[circuit.state]}>${named("access.states", circuit.state)}<//>`],
      [t("access.processes"), (/** @type {any} */ circuit) => Object.entries(circuit.roles).map(([role, state]) => `${role.replaceAll("+", ", ")}: ${named("access.states", /** @type {string} */ (state))}`).join("; ")],
      ["", (/** @type {any} */ circuit) => html`<button class="button small" disabled=${busy} onClick=${() => close(circuit.service)}>${t("access.close")}</button>`],
    ]} />`}
    ${closed.length > 0 && html`<details class="card"><summary><span class="tone-good"><${Icon} name="check" /></span> ${t("access.answering", { n: closed.length })}</summary>
      <p class="row services">${closed.map((/** @type {any} */ circuit) => html`<${Badge} key=${circuit.service}>${circuit.service}<//>`)}</p></details>`}</section>`;
}
