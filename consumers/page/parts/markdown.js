// Converts Markdown to vnodes. No string is ever read as HTML, and links lead only to http, https and mailto.
import { h, html } from "../html.js";

const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|(?<![\w*])\*(?=[^\s*])([\s\S]*?[^\s*])\*(?![\w*])|(?<!\w)_(?=\S)([\s\S]*?\S)_(?!\w)|~~(?=\S)([\s\S]*?\S)~~|!?\[([^\]\n]{0,500})\]\(\s*<?([^()\s<>]{1,2000}(?:\([^()\s<>]*\)[^()\s<>]*)?)>?(?:\s+"[^"\n]*")?\s*\)|(https?:\/\/[^\s<>"'`]{1,2000}[^\s<>"'`.,;:!?)\]}，。；：！？）】])/g;
const LONGEST_INLINE = 5_000; // characters; a longer line is shown as plain text

/** @param {{text: string}} props */
export function Markdown({ text }) {
  return html`<div class="markdown" dir="auto">${blocks(text.split(/\r?\n/), 0)}</div>`;
}

/** @param {string[]} lines @param {number} depth @returns {any[]} */
function blocks(lines, depth) {
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const [block, next] = depth < 8 ? blockAt(lines, at, depth) : [h("p", null, lines.slice(at).join("\n")), lines.length];
    if (block) made.push(block);
    at = next;
  }
  return made;
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[any, number]} */
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  const fence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,40})/.exec(line);
  if (fence) return fenced(lines, at, fence[1], fence[2]);
  const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/.exec(line);
  if (heading) return [h(`h${Math.min(6, heading[1].length + 2)}`, null, inline(heading[2])), at + 1];
  if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) return [h("hr", null), at + 1];
  if (/^ {0,3}>/.test(line)) {
    const end = whileLines(lines, at, (each) => /^ {0,3}>/.test(each));
    return [h("blockquote", null, blocks(lines.slice(at, end).map((each) => each.replace(/^ {0,3}> ?/, "")), depth + 1)), end];
  }
  if (ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "")) return table(lines, at);
  const end = whileLines(lines, at, (each, first) => Boolean(each.trim()) && (first || !/^ {0,3}(#{1,6}\s|>|`{3,}|~{3,})/.test(each) && !ITEM.test(each)));
  return [h("p", null, lines.slice(at, end).flatMap((each, n) => (n ? [h("br", null), ...inline(each)] : inline(each)))), end];
}

/** @param {string[]} lines @param {number} at @param {(line: string, first: boolean) => boolean} holds */
function whileLines(lines, at, holds) {
  let end = at;
  while (end < lines.length && holds(lines[end], end === at)) end += 1;
  return end;
}

/** @param {string[]} lines @param {number} at @param {string} mark @param {string} language @returns {[any, number]} */
function fenced(lines, at, mark, language) {
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end += 1;
  const code = lines.slice(at + 1, end).join("\n");
  return [html`<pre tabindex="0" data-language=${language || null}><code>${code}</code></pre>`, end + 1];
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[any, number]} */
function list(lines, at, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[1].length < indent || (item[1].length === indent && /\d/.test(item[2]) !== ordered)) break;
    const inside = [item[3]];
    end += 1;
    while (end < lines.length) {
      const nested = ITEM.exec(lines[end]);
      if (nested ? nested[1].length <= indent : !/^\s+\S/.test(lines[end]) && lines[end].trim()) break;
      if (!lines[end].trim() && !/^\s+\S/.test(lines[end + 1] ?? "") && !ITEM.test(lines[end + 1] ?? "")) break;
      inside.push(lines[end].slice(Math.min(lines[end].search(/\S|$/), indent + 2)));
      end += 1;
    }
    const [words, ...rest] = inside;
    items.push(h("li", null, inline(words), blocks(rest, depth + 1)));
  }
  return [h(ordered ? "ol" : "ul", ordered ? { start: Number.parseInt(first[2], 10) } : null, items), end];
}

/** @param {string[]} lines @param {number} at @returns {[any, number]} */
function table(lines, at) {
  const cells = (/** @type {string} */ line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const end = whileLines(lines, at + 2, (each) => each.includes("|"));
  const rows = lines.slice(at + 2, Math.max(end, at + 2)).map(cells);
  return [html`<div class="table-frame" tabindex="0"><table>
    <thead><tr>${cells(lines[at]).map((cell) => h("th", { scope: "col" }, inline(cell)))}</tr></thead>
    <tbody>${rows.map((row) => h("tr", null, row.map((cell) => h("td", null, inline(cell)))))}</tbody>
  </table></div>`, Math.max(end, at + 2)];
}

/** @param {string} text @param {number} [depth] @returns {any[]} */
function inline(text, depth = 0) {
  if (depth > 5 || text.length > LONGEST_INLINE) return [text];
  const made = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, , code, bold, starred, lined, struck, words, target, bare] = found;
    made.push(text.slice(at, found.index));
    at = found.index + whole.length;
    if (code !== undefined) made.push(h("code", null, code));
    else if (bold !== undefined) made.push(h("strong", null, inline(bold, depth + 1)));
    else if (starred !== undefined || lined !== undefined) made.push(h("em", null, inline(starred ?? lined, depth + 1)));
    else if (struck !== undefined) made.push(h("del", null, inline(struck, depth + 1)));
    else made.push(link(target ?? bare, words ?? bare, whole, depth));
  }
  made.push(text.slice(at));
  return made.filter((each) => each !== "");
}

/** @param {string} target @param {string} words @param {string} whole @param {number} depth */
function link(target, words, whole, depth) {
  if (!SAFE_LINK.test(target)) return whole;
  return h("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow", title: target }, depth ? words : inline(words, 5));
}
