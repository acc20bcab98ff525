// A value that components share. Components that use it are drawn again when it changes.
import { useEffect, useState } from "./html.js";

/**
 * @template T
 * @typedef {{get: () => T, set: (value: T) => void, subscribe: (on: (value: T) => void) => () => void}} Store
 */

/**
 * @template T
 * @param {T} value
 * @returns {Store<T>}
 */
export function store(value) {
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      value = next;
      for (const on of [...listeners]) on(value);
    },
    subscribe(on) {
      listeners.add(on);
      return () => listeners.delete(on);
    },
  };
}

/**
 * @template T
 * @param {Store<T>} of
 * @returns {T}
 */
export function useStore(of) {
  const [value, set] = useState(of.get());
  useEffect(() => {
    set(of.get());
    return of.subscribe(set);
  }, [of]);
  return value;
}
