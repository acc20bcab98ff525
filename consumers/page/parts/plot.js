// Plots values over time with uPlot, in the colours of the theme.
import { html, useEffect, useRef } from "../html.js";
import { isDark, language, theme } from "../session.js";
import { useStore } from "../store.js";
import uPlot from "../vendor/uPlot.js";
import { clock, moment } from "./format.js";

const HEIGHT = 200;
const DAY_S = 86_400;
const COUNTS = [1, 2, 5].flatMap((first) => Array.from({ length: 12 }, (_, zeros) => first * 10 ** zeros)).sort((a, b) => a - b);

/**
 * Shows a plot. times: in seconds since 1970, `step` seconds apart; values of missing times are 0. least: the smallest number of steps to show, the last of them now. kind: the colour of the class `bar-…`. shown: formats a value.
 * @param {{title: string, times: number[], step: number, least: number, series: {label: string, kind: string, values: number[]}[], shown: (value: number) => string, bars?: boolean, whole?: boolean}} props whole: true if values have no fractions
 */
export function Plot({ title, times: known, step, least, series: given, shown, bars = false, whole = true }) {
  const { times, series } = filled(known, given, step, least);
  const frame = useRef(/** @type {any} */ (null));
  useStore(theme);
  useEffect(() => {
    const element = frame.current;
    const colours = Object.fromEntries([...element.querySelectorAll("[data-colour]")].map((swatch) => [swatch.dataset.colour, getComputedStyle(swatch).backgroundColor]));
    const style = getComputedStyle(element);
    const text = getComputedStyle(element.querySelector(".legend")).color;
    const line = style.borderTopColor;
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: `11px ${style.fontFamily}` };
    const plot = new uPlot({
      width: element.clientWidth - 24, height: HEIGHT, padding: [12, 8, 0, 0], legend: { show: false }, cursor: { y: false },
      scales: { x: { time: true, range: (/** @type {any} */ _, /** @type {number} */ from, /** @type {number} */ to) => [from - step / 2, to + step / 2] }, y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, most || 1] } },
      axes: [{ ...axis, size: step < DAY_S ? 34 : 20, space: 64, values: (/** @type {any} */ _, /** @type {number[]} */ values) => values.map((time, at) => tick(time, values[at - 1], step)) }, { incrs: whole ? COUNTS : undefined, ...axis, size: 58, values: (/** @type {any} */ _, /** @type {number[]} */ values) => values.map(shown) }],
      series: [{}, ...series.map(({ label, kind }) => ({ label, stroke: colours[kind], fill: bars ? colours[kind] : undefined, width: bars ? 0 : 2, points: { show: false }, paths: bars ? /** @type {any} */ (uPlot).paths.bars({ size: [0.7, 36] }) : undefined }))],
    }, [times, ...stacked(series)], element.querySelector(".plot-area"));
    const observer = new ResizeObserver(() => plot.setSize({ width: element.clientWidth - 24, height: HEIGHT }));
    observer.observe(element);
    return () => { observer.disconnect(); plot.destroy(); };
  }, [JSON.stringify([times, series]), isDark(), language.get()]);
  const ends = [times[0], times[times.length - 1]].map((seconds) => html`<time datetime=${new Date(seconds * 1000).toISOString()}>${moment(seconds * 1000)}</time>`);
  return html`<figure class="card plot" ref=${frame}>
    <figcaption class="row apart"><h3>${title}</h3>
      <ul class="legend">${series.map(({ label, kind, values }) => html`<li key=${kind}><i class="swatch bar-${kind}" data-colour=${kind} /><span>${label}</span><b class="number">${shown(values.reduce((sum, value) => sum + value, 0))}</b></li>`)}</ul></figcaption>
    <div class="plot-area" aria-hidden="true" />
    <table class="sr"><caption>${title}, ${ends[0]} – ${ends[1]}</caption><tbody>${times.map((time, at) => series.some(({ values }) => values[at]) && html`<tr key=${time}><th scope="row">${moment(time * 1000)}</th>${series.map(({ label, values }) => html`<td key=${label}>${label}: ${shown(values[at])}</td>`)}</tr>`)}</tbody></table>
  </figure>`;
}

/** Returns the label of a time on the axis: the time, and below it the date if a day begins. @param {number} time @param {number | undefined} before @param {number} step */
function tick(time, before, step) {
  const date = (/** @type {number} */ seconds) => new Date(seconds * 1000).toLocaleDateString(language.get(), { day: "numeric", month: "short", timeZone: step >= DAY_S ? "UTC" : undefined });
  if (step >= DAY_S) return date(time);
  return before !== undefined && date(before) === date(time) ? clock(time * 1000) : `${clock(time * 1000)}\n${date(time)}`;
}

/** Returns times and values for at least `least` steps up to now; missing values are 0. @param {number[]} known
 * @param {{label: string, kind: string, values: number[]}[]} series @param {number} step @param {number} least */
function filled(known, series, step, least) {
  const last = Math.max(known.at(-1) ?? 0, Math.floor(Date.now() / 1000 / step) * step);
  const first = Math.min(known[0] ?? last, last - (least - 1) * step);
  const times = Array.from({ length: Math.round((last - first) / step) + 1 }, (_, at) => first + at * step);
  const places = new Map(known.map((time, at) => [time, at]));
  return { times, series: series.map((each) => ({ ...each, values: times.map((time) => each.values[places.get(time) ?? -1] ?? 0) })) };
}

/** Returns stacked values: to each series, the sums of the series after it are added. The highest bars are drawn first.
 * @param {{values: number[]}[]} series */
function stacked(series) {
  return series.map((_, from) => series[from].values.map((__, at) => series.slice(from).reduce((sum, { values }) => sum + values[at], 0)));
}
