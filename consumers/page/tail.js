// Follows the event streams of the public API.
import { useEffect, useRef, useState } from "./html.js";
import { events } from "./api.js";

export const MOST = 2000; // events that the tab keeps
const AGAIN_MS = 2000;
const DRAW_MS = 100; // events that arrive within this time are drawn together
const QUIET_MS = 700; // without an event for this time, the stream has nothing to send for now

/**
 * Follows a stream of events and keeps the newest MOST. waiting: the number of events that arrived while it was paused.
 * settled: true once events have arrived, or there are none for now.
 * @param {string | null} address null follows nothing @param {Record<string, any>} query @param {boolean} [paused]
 * @returns {{items: any[], error: any, waiting: number, settled: boolean}}
 */
export function useTail(address, query, paused = false) {
  const tail = useRef({ all: /** @type {any[]} */ ([]), more: /** @type {any[]} */ ([]), came: 0 });
  const isPaused = useRef(paused);
  isPaused.current = paused;
  const [state, setState] = useState({ items: /** @type {any[]} */ ([]), error: /** @type {any} */ (null), waiting: 0, settled: false });
  const change = (/** @type {any} */ values) => setState((/** @type {any} */ before) => ({ ...before, ...values }));
  const show = () => {
    const own = tail.current;
    if (!isPaused.current && own.more.length) { own.all = [...own.all, ...own.more].slice(-MOST); own.more = []; own.came = 0; }
    change({ items: own.all, waiting: own.came, settled: true, error: null });
  };
  useEffect(() => {
    if (address === null) return undefined;
    const aborter = new AbortController();
    const { signal } = aborter;
    tail.current = { all: [], more: [], came: 0 };
    change({ items: [], settled: false });
    let last = 0;
    let drawing = false;
    const follow = async () => {
      while (!signal.aborted) {
        const quiet = setTimeout(() => signal.aborted || change({ settled: true, error: null }), QUIET_MS);
        try {
          for await (const { data } of events("GET", address, { query, headers: last ? { "Last-Event-ID": String(last) } : {}, signal })) {
            last = data.seq;
            const { more } = tail.current;
            more.push(data);
            tail.current.came++;
            if (more.length > 2 * MOST) more.splice(0, MOST);
            if (!drawing) { drawing = true; setTimeout(() => { drawing = false; if (!signal.aborted) show(); }, DRAW_MS); }
          }
        } catch (/** @type {any} */ error) {
          if (signal.aborted) return;
          change({ error, settled: true });
          if (error.status && error.status !== 404) return; // goes on after a 404, because the conversation may begin later
        } finally {
          clearTimeout(quiet);
        }
        await new Promise((resume) => setTimeout(resume, AGAIN_MS));
      }
    };
    follow();
    return () => aborter.abort();
  }, [address, JSON.stringify(query)]);
  useEffect(() => { if (tail.current.came) show(); }, [paused]);
  return state;
}
