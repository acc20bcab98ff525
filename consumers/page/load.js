// Hooks with which screens read from the API: one value, or a list page by page.
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { get } from "./api.js";
import { agentName } from "./i18n.js";
import { store, useStore } from "./store.js";

/**
 * Reads a value, and reads it again when a dependency changes or `reload` is called. The old value stays until the new one has
 * arrived.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} read
 * @param {any[]} dependencies
 * @returns {{value: T | undefined, error: Error | null, loading: boolean, reload: () => void, set: (value: T) => void}}
 */
export function useLoad(read, dependencies) {
  const [state, setState] = useState(/** @type {{value: any, error: any, loading: boolean}} */ ({ value: undefined, error: null, loading: true }));
  const [round, setRound] = useState(0);
  useEffect(() => {
    const aborter = new AbortController();
    setState((/** @type {any} */ before) => ({ ...before, loading: true }));
    read(aborter.signal).then(
      (value) => aborter.signal.aborted || setState({ value, error: null, loading: false }),
      (error) => aborter.signal.aborted || setState((/** @type {any} */ before) => ({ ...before, error, loading: false })),
    );
    return () => aborter.abort();
  }, [...dependencies, round]);
  const reload = useCallback(() => setRound((/** @type {any} */ before) => before + 1), []);
  const set = useCallback((/** @type {T} */ value) => setState({ value, error: null, loading: false }), []);
  return { ...state, reload, set };
}

/**
 * Reads a list of the API page by page. `more` reads the next page, for example at the end of a windowed list. `reload`, or a new
 * value of `changes`, reads as many items again as the list has now.
 * @param {string | null} address null reads nothing
 * @param {Record<string, any>} query @param {number} [changes]
 * @returns {{items: any[], error: Error | null, loading: boolean, complete: boolean, more: () => void, reload: () => void,
 *   change: (items: any[]) => void}}
 */
export function usePages(address, query, changes = 0) {
  const key = JSON.stringify([address, query]);
  const [state, setState] = useState({ items: /** @type {any[]} */ ([]), error: null, loading: true, complete: false });
  const [round, setRound] = useState(0);
  const reading = useRef(/** @type {{key: string, count: number, busy: boolean, next: string | null, aborter: AbortController}} */ ({ key, count: 0, busy: false, next: null, aborter: new AbortController() }));
  const readPage = useCallback(async () => {
    const own = reading.current;
    if (address === null || own.busy) return;
    own.busy = true;
    setState((/** @type {any} */ before) => ({ ...before, loading: true }));
    try {
      const first = own.next === null;
      const items = /** @type {any[]} */ ([]);
      do {
        const page = await get(address, { query: { ...query, cursor: own.next }, signal: own.aborter.signal });
        if (own.aborter.signal.aborted) return;
        own.next = page.next;
        items.push(...page.items);
      } while (first && own.next !== null && items.length < own.count);
      own.count = first ? items.length : own.count + items.length;
      setState((/** @type {any} */ before) => ({
        items: first ? items : [...before.items, ...items], error: null, loading: false, complete: own.next === null,
      }));
    } catch (/** @type {any} */ error) {
      if (!own.aborter.signal.aborted) setState((/** @type {any} */ before) => ({ ...before, error, loading: false }));
    } finally {
      own.busy = false;
    }
  }, [key]);
  useEffect(() => {
    reading.current = { key, count: reading.current.key === key ? reading.current.count : 0, busy: false, next: null, aborter: new AbortController() };
    readPage();
    return () => reading.current.aborter.abort();
  }, [key, round, changes]);
  const more = useCallback(() => reading.current.next !== null && readPage(), [readPage]);
  return {
    ...state,
    more,
    reload: useCallback(() => setRound((/** @type {any} */ before) => before + 1), []),
    change: useCallback((/** @type {any[]} */ items) => setState((/** @type {any} */ before) => ({ ...before, items })), []),
  };
}

/** Returns the items of the first `count` pages of a list, and whether there are more. @param {string} address @param {number} count @param {AbortSignal} signal @param {Record<string, any>} [query]
 * @returns {Promise<{items: any[], more: boolean}>} */
export async function firstPages(address, count, signal, query = {}) {
  const items = [];
  let cursor = null;
  for (let at = 0; at < count; at++) {
    const page = await get(address, { query: { ...query, limit: 100, cursor }, signal });
    items.push(...page.items);
    cursor = page.next;
    if (cursor === null) break;
  }
  return { items, more: cursor !== null };
}

/** Closes a panel on Escape, and returns the focus to the element that opened it. @param {() => void} close */
export function useEscape(close) {
  const opener = useRef(/** @type {any} */ (document.activeElement));
  useEffect(() => {
    const leave = (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
      close();
      if (opener.current?.isConnected) opener.current.focus();
    };
    addEventListener("keydown", leave);
    return () => removeEventListener("keydown", leave);
  });
}

/** Calls `act` every `seconds` seconds while the screen is shown and the tab is visible.
 * @param {() => void} act @param {number} seconds @param {any[]} dependencies */
export function useEvery(act, seconds, dependencies) {
  useEffect(() => {
    const timer = setInterval(() => document.hidden || act(), seconds * 1000);
    return () => clearInterval(timer);
  }, dependencies);
}

/** Returns label, tokens and parked state of conversations by their ids. They are read separately, so that lists need not wait for them.
 * @param {string[]} threads @returns {Record<string, {label: string | null, tokens: number, parked: boolean}>} */
export function useMarks(threads) {
  const [marks, setMarks] = useState(/** @type {any} */ ({}));
  const unknown = [...new Set(threads)].filter((thread) => !(thread in marks)).slice(0, 50);
  useEffect(() => {
    if (!unknown.length) return;
    const none = Object.fromEntries(unknown.map((thread) => [thread, { label: null, tokens: 0, parked: false }]));
    const add = (/** @type {any[]} */ known) => setMarks((/** @type {any} */ before) => ({ ...before, ...none, ...Object.fromEntries(known.map((each) => [each.thread, each])) }));
    get("/api/thread-marks", { query: { thread: unknown } }).then(add, () => {});
  }, [unknown.join("\n")]);
  return marks;
}

const agents = store(/** @type {any[]} */ ([]));

/** Returns a function from an agent's type to its name. It returns the type itself until the agents are read, and for agents that no longer exist.
 * @returns {(type: string) => string} */
export function useAgentNames() {
  const known = useStore(agents);
  useEffect(() => { get("/api/agents").then(agents.set, () => {}); }, []);
  return (type) => agentName(known.find((each) => each.type === type) ?? { type, name: type });
}
