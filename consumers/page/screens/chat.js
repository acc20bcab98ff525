// The screen of a conversation: its turns, a question with its streamed answer, and what the model saw for each answer.
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import { Problem, events, get, path, post } from "../api.js";
import { may } from "../session.js";
import { t } from "../i18n.js";
import { Empty, Failure, Loading } from "../parts/common.js";
import { Icon } from "../parts/icons.js";
import { Redact } from "../parts/redact.js";
import { Seen } from "../parts/seen.js";
import { threadChanged } from "../parts/thread_head.js";
import { toast } from "../parts/toast.js";
import { Turns, spoken } from "../parts/turns.js";

const PAGE = 60;
const MOST = 240; // turns that the tab keeps; when more are read, turns at the other end are dropped
const NEAR_END = 80; // within so many pixels of the end, the view follows the answer

/** @typedef {{question: string, began: string, blocks: import("../parts/turns.js").Block[], agent: string | null, error: Error | null, seq: number | null, stopped: boolean, key: string, failed: boolean}} Live
 * A question and its running answer. key: the idempotency key; a question sent again with it is asked only once. failed: the answer ended with an error, so trying again needs a new key. */

/** @param {{thread: string, query: Record<string, string>}} props */
export default function Chat({ thread, query }) {
  const wanted = query.seq ? Number(query.seq) : null;
  const { turns, older, newer, error, loading, readOlder, readNewer, readNewest } = useTurns(thread, wanted);
  const [live, setLive] = useState(/** @type {Live | null} */ (null));
  const [seen, setSeen] = useState(/** @type {import("../parts/turns.js").Spoken | null} */ (null));
  const [redacted, setRedacted] = useState(/** @type {number | null} */ (null)); // the sequence of the turn to redact
  const aborter = useRef(/** @type {AbortController | null} */ (null));
  const cancelled = useRef(false);
  const said = useMemo(() => spoken(turns), [turns]);
  const { frame, follow } = useFollowing([turns, live], wanted, newer && !live);
  useEffect(() => () => aborter.current?.abort(), [thread]);

  const read = async (/** @type {string} */ method, /** @type {string} */ address, /** @type {any} */ more = {}) => {
    aborter.current = new AbortController();
    cancelled.current = false;
    follow();
    try {
      for await (const event of events(method, address, { ...more, signal: aborter.current.signal })) {
        if (event.event === "error" && cancelled.current) break;
        if (event.event === "error") {
          setLive((/** @type {any} */ before) => before && { ...before, failed: true });
          throw new Problem(event.data.status, event.data);
        }
        setLive((/** @type {any} */ before) => before && withEvent(before, event));
      }
      await readNewest();
      setLive(null);
      if (cancelled.current) toast(t("chat.cancelled"));
    } catch (/** @type {any} */ problem) {
      if (aborter.current?.signal.aborted) setLive((/** @type {any} */ before) => before && { ...before, stopped: true });
      else {
        await readNewest().catch(() => {});
        setLive((/** @type {any} */ before) => before && { ...before, error: problem });
      }
    }
    threadChanged.set(threadChanged.get() + 1);
  };
  const ask = (/** @type {string} */ message, key = newKey(), /** @type {number | null} */ seq = null) => {
    setLive({ question: message, began: new Date().toISOString(), blocks: [], agent: null, error: null, seq, stopped: false, key, failed: false });
    return read("POST", path`/api/threads/${thread}/answers/stream`, { body: { message }, headers: { "Idempotency-Key": key } });
  };
  /** Asks again. After a refusal or a lost connection it sends the same key, and so gets the answer that was made meanwhile. */
  const askAgain = (/** @type {Live} */ { question, key, seq, failed }) => (failed ? ask(question) : ask(question, key, seq));
  /** Stops the answer; the server records the text so far. If the server cannot stop it, this only stops reading. */
  const stop = async () => {
    const reading = aborter.current;
    try {
      if (live?.seq == null) reading?.abort();
      else {
        cancelled.current = true;
        await post(path`/api/threads/${thread}/answers/${live.seq}/cancel`);
      }
    } catch {
      cancelled.current = false;
      reading?.abort();
    }
  };
  const continueReading = () => {
    setLive((/** @type {any} */ before) => before && { ...before, blocks: [], stopped: false });
    return read("GET", path`/api/threads/${thread}/answers/${live?.seq}`);
  };
  const running = live !== null && !live.error && !live.stopped;
  const shown = live ? [...withoutQuestion(said, live), ...liveTurns(live)] : said;

  return html`<div class="chat ${seen ? "with-seen" : ""}">
    <div class="chat-main">
      <div class="chat-turns" ref=${frame} role="log" aria-label=${t("screens.chat")} tabindex="0">
        <div class="chat-inner">
          <${Failure} error=${error} retry=${readNewest} />
          ${older && html`<button class="button small older" onClick=${readOlder}>${t("chat.earlier")}</button>`}
          ${loading && !turns.length ? html`<${Loading} />`
            : !shown.length && !error ? html`<${Empty} icon="chat" title=${t("chat.none")}>${t("chat.none_about")}<//>` : null}
          <${Turns} turns=${shown} markedSeq=${wanted} onSeen=${(/** @type {any} */ turn) => setSeen(seen?.key === turn.key ? null : turn)} seenKey=${seen?.key}
            onRedact=${may("erase") ? (/** @type {any} */ turn) => setRedacted(turn.seq) : undefined} />
          ${live?.error && html`<${Failure} error=${live.error} retry=${() => askAgain(live)} />`}
          ${live?.stopped && html`<p class="stopped" role="status">${t("chat.stopped")} ${live.seq !== null && html`<button class="button small" onClick=${continueReading}>${t("chat.show_answer")}</button>`}</p>`}
          ${newer && html`<div class="row older"><button class="button small" onClick=${readNewer}>${t("chat.later")}</button>
            <button class="button small" onClick=${readNewest}>${t("chat.newest")}</button></div>`}
        </div>
      </div>
      <${Composer} running=${running} onAsk=${ask} onStop=${stop} />
    </div>
    ${redacted !== null && html`<${Redact} thread=${thread} seq=${redacted} onClose=${() => setRedacted(null)} onDone=${readNewest} />`}
    ${seen && html`<${Seen} thread=${thread} turn=${seen} onClose=${() => setSeen(null)} />`}
  </div>`;
}

/** @param {{running: boolean, onAsk: (message: string) => void, onStop: () => void}} props */
function Composer({ running, onAsk, onStop }) {
  const [text, setText] = useState("");
  const field = useRef(/** @type {any} */ (null));
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) field.current?.focus({ preventScroll: true });
  }, []);
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${Math.min(220, field.current.scrollHeight)}px`;
  }, [text]);
  const send = () => {
    if (!text.trim() || running) return;
    onAsk(text.trim());
    setText("");
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape" && running) {
      event.preventDefault();
      onStop();
    }
  };
  return html`<form class="composer" onSubmit=${(/** @type {any} */ event) => { event.preventDefault(); send(); }}>
    <div class="composer-box">
      <textarea ref=${field} rows="1" dir="auto" value=${text} placeholder=${t("chat.write")} aria-label=${t("chat.write")}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${onKeyDown} />
      ${running ? html`<button type="button" class="composer-button stop" aria-label=${t("chat.stop")} title=${t("chat.stop")} onClick=${onStop}><${Icon} name="stop" /></button>`
        : html`<button class="composer-button" aria-label=${t("chat.send")} title=${t("chat.send")} disabled=${!text.trim()}><${Icon} name="send" /></button>`}
    </div>
    <p class="faint small">${t("chat.keys")}</p>
  </form>`;
}

/** Returns a random key. crypto.randomUUID is missing if the page comes from another machine without TLS. */
const newKey = () => [...crypto.getRandomValues(new Uint32Array(4))].map((each) => each.toString(36)).join("-");

/** Returns the newest turns, or the turns around the sequence `wanted`, and functions that read more of them.
 * @param {string} thread @param {number | null} wanted */
function useTurns(thread, wanted) {
  const [state, setState] = useState({ turns: /** @type {any[]} */ ([]), older: false, newer: false, loading: true, error: /** @type {any} */ (null) });
  const read = (/** @type {Record<string, any>} */ query) => get(path`/api/threads/${thread}/turns`, { query: { limit: PAGE, newest: true, ...query } });
  const begin = useCallback(async (/** @type {number | null} */ around) => {
    try {
      const [page, newest] = await Promise.all([read(around === null ? {} : { before_seq: around + PAGE / 2 }), around === null ? null : read({ limit: 1 })]);
      setState({ turns: page.items, older: page.next !== null, newer: newest !== null && newest.items[0]?.seq !== page.items.at(-1)?.seq, loading: false, error: null });
    } catch (/** @type {any} */ error) {
      setState((/** @type {any} */ before) => ({ ...before, loading: false, error: error.status === 404 ? null : error }));
    }
  }, [thread]);
  useEffect(() => { begin(wanted); }, [thread, wanted]);
  const readOlder = async () => {
    const page = await read({ before_seq: state.turns[0]?.seq });
    setState((/** @type {any} */ before) => {
      const turns = [...page.items, ...before.turns];
      return { ...before, turns: turns.slice(0, MOST), older: page.next !== null, newer: before.newer || turns.length > MOST };
    });
  };
  const readNewer = async () => {
    const page = await read({ newest: null, after_seq: state.turns.at(-1)?.seq });
    setState((/** @type {any} */ before) => {
      const turns = [...before.turns, ...page.items];
      return { ...before, turns: turns.slice(-MOST), older: before.older || turns.length > MOST, newer: page.next !== null };
    });
  };
  return { ...state, readOlder, readNewer, readNewest: () => begin(null) };
}

/** Keeps the end in view if the reader is at the end, otherwise the topmost turn in view, when turns are added or removed.
 * @param {any[]} changes @param {number | null} wanted @param {boolean} more true if there are later turns */
function useFollowing(changes, wanted, more) {
  const frame = useRef(/** @type {any} */ (null));
  const before = useRef({ atEnd: wanted === null, found: wanted === null, more, seq: "", top: 0 }); // seq, top: sequence and position of the topmost turn in view
  const noteTurn = () => {
    const edge = frame.current.getBoundingClientRect().top;
    const turn = [...frame.current.querySelectorAll(".turn[data-seq]")].find((each) => each.getBoundingClientRect().bottom > edge);
    if (turn) Object.assign(before.current, { seq: turn.dataset.seq, top: turn.getBoundingClientRect().top });
  };
  useLayoutEffect(() => {
    const element = frame.current;
    const last = before.current;
    const marked = last.found ? null : element.querySelector(".turn.marked");
    if (marked) {
      marked.scrollIntoView({ block: "center" });
      last.found = true;
      last.atEnd = false;
    } else if (last.atEnd && !last.more) element.scrollTop = element.scrollHeight;
    else {
      const turn = element.querySelector(`.turn[data-seq="${last.seq}"]`);
      if (turn) element.scrollTop += turn.getBoundingClientRect().top - last.top;
    }
    last.more = more;
    noteTurn();
  }, changes);
  useEffect(() => {
    const element = frame.current;
    const note = () => {
      noteTurn();
      before.current.atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END;
    };
    element.addEventListener("scroll", note, { passive: true });
    return () => element.removeEventListener("scroll", note);
  }, []);
  return { frame, follow: () => { before.current.atEnd = true; } };
}

/** @param {Live} live @param {import("../api.js").ServerEvent} event @returns {Live} */
function withEvent(live, { event, data }) {
  const blocks = live.blocks;
  const last = blocks.at(-1);
  switch (event) {
    case "started": return { ...live, seq: data.seq };
    case "content":
      return last?.kind === "text" ? { ...live, blocks: [...blocks.slice(0, -1), { kind: "text", text: last.text + data.chunk }] }
        : { ...live, blocks: [...blocks, { kind: "text", text: data.chunk }] };
    case "tool_start": return { ...live, blocks: [...blocks, { kind: "call", call: { id: data.id, name: data.name, args: data.args } }] };
    case "tool_end": return { ...live, blocks: blocks.map((block) => (block.call === undefined || block.call.id !== data.id ? block
      : { ...block, call: { ...block.call, result: data.result, failed: data.is_error, milliseconds: data.latency_ms } })) };
    case "plan": return data.thought ? { ...live, blocks: [...blocks, { kind: "thinking", text: data.thought }] } : live;
    case "agent_switch": return { ...live, agent: data.to };
    case "phase_change": return { ...live, agent: data.agent };
    case "restart": return { ...live, blocks: blocks.filter((block) => block.kind === "call") };
    default: return live;
  }
}

/** Returns the turns without those of the running question, which are shown from the stream. @param {any[]} said @param {Live} live */
const withoutQuestion = (said, live) => (live.error || live.seq === null ? said : said.filter((turn) => turn.seq < /** @type {number} */ (live.seq) - 1));

/** @param {Live} live @returns {import("../parts/turns.js").Spoken[]} */
function liveTurns(live) {
  if (live.error && live.seq !== null) return [];
  const question = { key: "question", seq: null, role: "user", time: live.began, blocks: [{ kind: /** @type {const} */ ("text"), text: live.question }] };
  if (live.error) return [question];
  return [question, { key: "answer", seq: null, role: "assistant", agent: live.agent, time: live.began, blocks: live.blocks, live: !live.stopped }];
}
