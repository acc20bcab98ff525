// html`…` makes vnodes. Text in it is never read as HTML. Control characters and changes of writing direction, which could
// affect other text of the page or a terminal, are replaced by visible signs, and very long texts are cut.
import { Fragment, createContext, h as create, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { Fragment, createContext, render };
export {
  useCallback, useContext, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useReducer, useRef, useState,
} from "./vendor/hooks.js";

const LONGEST = 100_000; // characters of one text; the layout of a longer text takes seconds
const ACTING = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const SHOWN_ATTRIBUTES = ["title", "alt", "placeholder", "aria-label", "label"];

/**
 * Returns the text, cut after LONGEST characters, with visible signs for control characters: control pictures (from U+2400)
 * for C0, and the code as in ⟨U+200E⟩ for others.
 * @param {string} text
 * @returns {string}
 */
export function plain(text) {
  const rest = text.length - LONGEST;
  const shown = rest > 0 ? `${text.slice(0, LONGEST)}… (+${rest.toLocaleString()})` : text;
  return shown.replace(ACTING, (sign) => {
    const code = sign.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** @param {any} child @returns {any} */
function plainChild(child) {
  if (typeof child === "string") return plain(child);
  return Array.isArray(child) ? child.map(plainChild) : child;
}

/**
 * @param {any} type @param {any} props @param {...any} children
 * @returns {any}
 */
export function h(type, props, ...children) {
  if (typeof type === "string" && props) {
    for (const name of SHOWN_ATTRIBUTES) if (typeof props[name] === "string") props[name] = plain(props[name]);
  }
  return create(type, props, ...children.map(plainChild));
}

export const html = htm.bind(h);
