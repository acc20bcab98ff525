// Draws the first 49 entities and their relations around the person. A force layout places them; the same entities always get
// the same places. A list beside the drawing has all entities.
import { html, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import { get } from "../api.js";
import { named, t } from "../i18n.js";
import { firstPages, useLoad } from "../load.js";
import { href } from "../router.js";
import { session } from "../session.js";
import { Badge, Empty, Failure, IconButton, Loading } from "./common.js";
import { clip, day } from "./format.js";

const MOST = 50; // nodes
/** Returns width and height of the drawing. With few entities, it fits a phone or a column. @param {number} entities */
const sizeFor = (entities) => (entities > 20 ? [760, 520] : matchMedia("(max-width: 760px)").matches ? [356, 440] : [600, 440]);
const [PUSH, REACH] = [0.0023, 150]; // strength with which nodes repel each other, per square pixel; preferred length of an edge
const KINDS = { PERSON: "3", PLACE: "2", SCHOOL: "memory", EVENT: "1", TOPIC: "tools" };

/** @param {{user?: string}} props user: another person's */
export function Graph({ user }) {
  const [pages, setPages] = useState(1);
  const { value, error, loading, reload } = useLoad((signal) => firstPages("/api/entities", pages, signal, { user }), [pages]);
  const { value: stored } = useLoad((signal) => get("/api/user-data", { query: { user }, signal }), []);
  const [chosen, setChosen] = useState(/** @type {string | null} */ (null));
  const graph = useMemo(() => (value ? placed(value.items, user ?? session.get()?.caller.user ?? "") : null), [value]);
  const frame = useRef(/** @type {any} */ (null));
  useLayoutEffect(() => { // scrolls to the middle, where the person is, because a phone shows only a part
    if (frame.current) frame.current.scrollLeft = (frame.current.scrollWidth - frame.current.clientWidth) / 2;
  }, [graph]);
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!graph) return loading && html`<${Loading} lines=${8} />`;
  if (!graph.nodes.length) return html`<${Empty} icon="memories" title=${t("graph.none")}>${t("graph.none_about")}<//>`;
  const entity = value?.items.find((each) => keyOf(each) === chosen);
  const marked = graph.nodes.some((each) => each.key === chosen) ? chosen : null; // entities beyond the first 49 are not drawn
  const near = (/** @type {string} */ key) => !marked || key === chosen || graph.edges.some((edge) => (edge.from.key === chosen && edge.to.key === key) || (edge.to.key === chosen && edge.from.key === key));
  return html`<div class="graph-columns">
    <div class="card graph" ref=${frame}><svg viewBox="0 0 ${graph.width} ${graph.height}" class=${graph.width > 600 ? "large" : ""} role="group" aria-label=${t("graph.label", { n: graph.nodes.length })}>
      ${graph.edges.map((edge, at) => html`<g key=${`e${at}`} class="edge ${marked && edge.from.key !== marked && edge.to.key !== marked ? "dim" : ""}">
        <line x1=${edge.from.x} y1=${edge.from.y} x2=${edge.to.x} y2=${edge.to.y} />
        <text x=${(edge.from.x + edge.to.x) / 2} y=${(edge.from.y + edge.to.y) / 2 - 3}>${clip(edge.type.replaceAll("_", " "), 24)}</text></g>`)}
      ${graph.nodes.map((each) => html`<g key=${each.key} class="node ${near(each.key) ? "" : "dim"} ${each.key === chosen ? "chosen" : ""}" transform="translate(${each.x} ${each.y})" role="button" tabindex="0"
        aria-pressed=${each.key === chosen} aria-label=${`${named("graph.types", each.type)}: ${each.name}`} onClick=${() => setChosen(each.key === chosen ? null : each.key)}
        onKeyDown=${(/** @type {any} */ event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), setChosen(each.key === chosen ? null : each.key))}>
        <circle r=${each.radius} class="node-${KINDS[/** @type {keyof typeof KINDS} */ (each.type)] ?? "system"}" /><text y=${each.radius + 14}>${clip(each.name, 22)}</text></g>`)}
    </svg></div>
    <div class="card graph-detail">${entity ? html`<${Entity} entity=${entity} onClose=${() => setChosen(null)} />` : html`<p class="muted">${t("graph.choose")}${(value?.items.length ?? 0) >= MOST && ` ${t("graph.drawn", { n: MOST - 1, all: stored?.entities ?? value?.items.length })}`}</p>
      <ul class="graph-list">${value?.items.map((each) => html`<li key=${keyOf(each)}><button class="chain-version" onClick=${() => setChosen(keyOf(each))}><${Badge}>${named("graph.types", each.type)}<//> <span dir="auto">${clip(each.name, 60)}</span></button></li>`)}</ul>
      ${value?.more && html`<button class="button small" disabled=${loading} onClick=${() => setPages(pages + 1)}>${t("operation.more")}</button>`}`}</div>
  </div>`;
}

/** @param {any} entity */
const keyOf = (entity) => `${entity.type} ${entity.name}`;

/** @param {{entity: any, onClose: () => void}} props */
function Entity({ entity, onClose }) {
  return html`<div class="stack">
    <div class="row apart"><h2 dir="auto">${entity.name}</h2><${IconButton} label=${t("close")} icon="close" onClick=${onClose} /></div><p class="row"><${Badge} tone="accent">${named("graph.types", entity.type)}<//><span class="muted small">${t("graph.mentions", { n: entity.mention_count })} · ${day(entity.last_seen_at)}</span></p>
    ${entity.description && html`<p dir="auto">${entity.description}</p>`}
    <dl class="facts">${Object.entries(entity.attributes).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd dir="auto">${String(value)}</dd>`)}
      ${entity.relations.map((/** @type {any} */ relation, /** @type {number} */ at) => html`<dt key=${`r${at}`}>${relation.type}</dt><dd dir="auto">${relation.target}</dd>`)}</dl>
    ${entity.sources.map((/** @type {any} */ source) => html`<blockquote key=${source.event_id} class="quote"><p dir="auto">${source.quote}</p>
      <footer class="muted small"><a href=${href(["threads", source.thread], { seq: source.seq })}>${t("memories.event", { seq: source.seq })}</a></footer></blockquote>`)}
  </div>`;
}

/** @typedef {{key: string, type: string, name: string, entity: any, x: number, y: number, radius: number, fixed?: boolean}} Node */

/** Returns the nodes with their places, and the edges; the person is in the middle. @param {any[]} entities @param {string} user @returns {{nodes: Node[], edges: {from: Node, to: Node, type: string}[], width: number, height: number}} */
function placed(entities, user) {
  const [width, height] = sizeFor(entities.length);
  if (!entities.length) return { nodes: [], edges: [], width, height };
  const me = { key: "me", type: "PERSON", name: user, entity: null, x: width / 2, y: height / 2, radius: 16, fixed: true };
  /** @type {Node[]} */
  const nodes = [me, ...entities.slice(0, MOST - 1).map((entity, at) => {
    const angle = at * 2.399963; // the golden angle, so that nodes do not overlap at the start
    const away = 70 + 22 * Math.sqrt(at);
    return { key: keyOf(entity), type: entity.type, name: entity.name, entity, x: width / 2 + away * (width / height) * Math.cos(angle), y: height / 2 + away * Math.sin(angle), radius: Math.min(15, 8 + Math.sqrt(entity.mention_count)) };
  })];
  const plain = (/** @type {any} */ name) => String(name).normalize("NFKC").toLowerCase(); // the form in which relations name their targets
  const byName = new Map(nodes.map((node) => [plain(node.name), node]));
  const edges = [];
  for (const node of nodes.slice(1)) {
    const { relations, attributes } = node.entity;
    for (const relation of relations) {
      const target = byName.get(plain(relation.target));
      if (target && target !== node) edges.push({ from: node, to: target, type: relation.type });
    }
    const place = byName.get(plain(attributes["lives-in"]));
    if (place && place !== node) edges.push({ from: node, to: place, type: "lives-in" });
    if (typeof attributes.relation === "string") edges.push({ from: me, to: node, type: attributes.relation });
  }
  for (let round = 0; round < 220; round += 1) push(nodes, edges, 1 - round / 220, width, height);
  return { nodes, edges, width, height };
}

/** @param {Node[]} nodes @param {{from: Node, to: Node}[]} edges @param {number} heat
 * @param {number} width @param {number} height */
function push(nodes, edges, heat, width, height) {
  const moves = nodes.map(() => ({ x: 0, y: 0 }));
  const strength = PUSH * width * height;
  nodes.forEach((one, a) => nodes.forEach((other, b) => {
    if (a === b) return;
    const [x, y] = [one.x - other.x, (one.y - other.y) * 1.3];
    const square = Math.max(120, x * x + y * y);
    moves[a].x += (x / square) * strength;
    moves[a].y += (y / square) * strength;
  }));
  for (const { from, to } of edges) {
    const [x, y] = [to.x - from.x, to.y - from.y];
    const pull = (Math.hypot(x, y) - REACH) * 0.08 / Math.max(1, Math.hypot(x, y));
    const [a, b] = [nodes.indexOf(from), nodes.indexOf(to)];
    moves[a].x += x * pull; moves[a].y += y * pull;
    moves[b].x -= x * pull; moves[b].y -= y * pull;
  }
  nodes.forEach((node, at) => {
    if (node.fixed) return;
    const limit = 14 * heat + 1;
    node.x = Math.max(64, Math.min(width - 64, node.x + Math.max(-limit, Math.min(limit, moves[at].x + (width / 2 - node.x) * 0.035))));
    node.y = Math.max(28, Math.min(height - 36, node.y + Math.max(-limit, Math.min(limit, moves[at].y + (height / 2 - node.y) * 0.06))));
  });
}
