// Addresses of screens: #/threads/ID/context?seq=7. The part after # never reaches the server.
import { store, useStore } from "./store.js";

/** @typedef {{path: string[], query: Record<string, string>}} Route */

/** @returns {Route} */
function current() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const route = store(current());
addEventListener("hashchange", () => route.set(current()));

/** @returns {Route} */
export const useRoute = () => useStore(route);

/**
 * Returns an address for a link: href(["threads", id, "context"], {seq: 7}).
 * @param {(string | number)[]} path @param {Record<string, any>} [query] @returns {string}
 */
export function href(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== null && value !== undefined && value !== "") parameters.set(name, String(value));
  const text = parameters.toString();
  return `#/${path.map((part) => encodeURIComponent(String(part))).join("/")}${text ? `?${text}` : ""}`;
}

/** Opens a screen. replace: replaces the current entry of the browser's history.
 * @param {(string | number)[]} path @param {Record<string, any>} [query] @param {{replace?: boolean}} [options] */
export function go(path, query = {}, { replace = false } = {}) {
  const address = href(path, query);
  if (!replace) {
    location.hash = address;
    return;
  }
  history.replaceState(null, "", address);
  route.set(current());
}
