// Icons of 16 × 16 pixels, drawn as strokes in the text's colour.
import { html } from "../html.js";

const PATHS = {
  threads: "M2.5 4.5h11M2.5 8h11M2.5 11.5h7",
  chat: "M3 3.5h10a1 1 0 0 1 1 1v6a1 1 0 0 1-1 1H7.5L4.5 14v-2.5H3a1 1 0 0 1-1-1v-6a1 1 0 0 1 1-1z",
  context: "M2.5 3.5h11v3h-11zM2.5 9.5h6v3h-6zM11 9.5h2.5v3H11z",
  memories: "M8 13.5S2.5 10.5 2.5 6.3A3 3 0 0 1 8 4.6a3 3 0 0 1 5.5 1.7C13.5 10.5 8 13.5 8 13.5z",
  recall: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.3 10.3l3.2 3.2",
  events: "M2.5 8h2.5l2-5 2.5 10 2-5h2",
  summary: "M4 2.5h8v11H4zM6 5.5h4M6 8h4M6 10.5h2",
  runs: "M3 3.5h5v2.5H3zM5.5 7h6v2.5h-6zM8 10.5h5V13H8z",
  operation: "M2.5 13.5v-4M6 13.5v-8M9.5 13.5v-6M13 13.5v-11",
  privacy: "M8 2l5 2v4c0 3-2.2 5-5 6-2.8-1-5-3-5-6V4z",
  access: "M10.2 9a3.2 3.2 0 1 0-3.1-2.4L2.5 11.2v2.3h2.3V12h1.6v-1.6h1.2l1-1a3.2 3.2 0 0 0 1.600-.4zM10.600 5.400h.010",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.3 10.3l3.2 3.2",
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  check: "M3 8.5l3.5 3.5L13 4.5",
  edit: "M3 13l.6-2.8L10.5 3.3l2.2 2.2-6.9 6.9z",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.5 9h6l.5-9",
  undo: "M5.5 3L2.5 6l3 3M2.5 6h7a4 4 0 0 1 0 8H6",
  send: "M8 13V3.5M4 7l4-4 4 4",
  stop: "M4.5 4.5h7v7h-7z",
  tool: "M9.5 2.5a3.5 3.5 0 0 0-3 5L2.5 11.5l2 2L8.5 9.5a3.5 3.5 0 0 0 4.6-4.3L11 7.3 8.7 5l2.1-2.1a3.5 3.5 0 0 0-1.3-.4z",
  eye: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8zM8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4z",
  link: "M6.5 9.5l3-3M7 4.5l1-1a2.8 2.8 0 0 1 4 4l-1 1M9 11.5l-1 1a2.8 2.8 0 0 1-4-4l1-1",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5z",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  more: "M3.5 8h.010M8 8h.010M12.5 8h.010",
  back: "M9.5 3.5L5 8l4.5 4.5",
  next: "M6.5 3.5L11 8l-4.5 4.5",
  warning: "M8 2.5l6 11H2zM8 6.5v3.5M8 12v.010",
  play: "M5 3.5l7.5 4.5L5 12.5z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  star: "M8 2.5l1.7 3.5 3.8.5-2.8 2.7.7 3.8L8 11.2 4.6 13l.7-3.8L2.5 6.5 6.3 6z",
  leave: "M6.5 3h-3v10h3M10 5l3 3-3 3M13 8H6.5",
};

/** @typedef {keyof typeof PATHS} IconName */

/** @param {{name: IconName, label?: string}} props label: the text for screen readers; without it the icon is only decoration */
export function Icon({ name, label }) {
  return html`<svg class="icon" viewBox="0 0 16 16" role=${label ? "img" : null} aria-label=${label} aria-hidden=${label ? null : "true"}>
    <path d=${PATHS[name]} />
  </svg>`;
}
