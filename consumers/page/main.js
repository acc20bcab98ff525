// The page's frame. How to add a screen:
//  1. Write screens/NAME.js with a component as its default export; it gets {thread?, path, query} of its address (router.js: href, go).
//  2. Add a line to SCREENS (in the menu) or OF_THREAD (a tab of a conversation); `needs` is a scope that the caller must have.
//  3. Put its words into a group `NAME: {…}` of i18n/en.js and i18n/zh.js, and its styles into styles/NAME.css (link it in
//     index.html). Use only the variables of styles/base.css for colours, sizes and spaces.
//  4. Read with useLoad and usePages (load.js), and write with post, put, patch, remove (api.js) inside `useWrite`.
//  5. Use the parts: parts/common.js (Head, Empty, Loading, Failure, Badge, Field, Segments, Search, Code), list.js (Table, and
//     WindowedList for long lists), bars.js, dialog.js (Dialog, confirm, prompt), toast.js (toast, undoable), markdown.js.
//  6. Pass people's texts to html`…` as children, with dir="auto". Never use HTML, `style` or on… attributes in strings.
//  7. Add a test in tests/page/ that uses the screen as a person does, and otherwise only fills in the server's data.
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./html.js";
import { post, get } from "./api.js";
import { t } from "./i18n.js";
import { href, useRoute } from "./router.js";
import { language, may, session, signOut, theme } from "./session.js";
import { useStore } from "./store.js";
import { Empty, Failure, Loading } from "./parts/common.js";
import { Questions } from "./parts/dialog.js";
import { Icon } from "./parts/icons.js";
import { Menu } from "./parts/menu.js";
import { SignIn } from "./parts/sign_in.js";
import { ThreadHead } from "./parts/thread_head.js";
import { Toasts } from "./parts/toast.js";

/** @typedef {{icon: import("./parts/icons.js").IconName, load: () => Promise<any>, needs?: string}} Screen */

/** @type {Record<string, Screen>} */
export const SCREENS = {
  threads: { icon: "threads", load: () => import("./screens/threads.js") },
  memories: { icon: "memories", load: () => import("./screens/memories.js") },
  recall: { icon: "recall", load: () => import("./screens/recall.js") },
  runs: { icon: "runs", load: () => import("./screens/runs.js") },
  events: { icon: "events", load: () => import("./screens/events.js"), needs: "operate" },
  operation: { icon: "operation", load: () => import("./screens/operation.js"), needs: "operate" },
  privacy: { icon: "privacy", load: () => import("./screens/privacy.js"), needs: "erase" },
  access: { icon: "access", load: () => import("./screens/access.js"), needs: "operate" },
};

/** @type {Record<string, Screen>} */
export const OF_THREAD = {
  chat: { icon: "chat", load: () => import("./screens/chat.js") },
  context: { icon: "context", load: () => import("./screens/context.js") },
  summary: { icon: "summary", load: () => import("./screens/summary.js") },
  events: { icon: "events", load: () => import("./screens/events.js") },
};

const loaded = /** @type {Map<Screen, any>} */ (new Map());

/** Shows a screen once its module is loaded. @param {{screen: Screen, [property: string]: any}} props */
function Loaded({ screen, ...properties }) {
  const [, drawAgain] = useState(0);
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  useEffect(() => {
    if (loaded.has(screen)) return;
    screen.load().then((module) => { loaded.set(screen, module.default); drawAgain((n) => n + 1); }, setError);
  }, [screen]);
  const Component = loaded.get(screen);
  if (error) return html`<${Failure} error=${error} retry=${() => location.reload()} />`;
  return Component ? html`<${Component} ...${properties} />` : html`<${Loading} />`;
}

/** @param {{path: string[], query: Record<string, string>}} props */
function Routed({ path, query }) {
  const [error, forget] = useErrorBoundary((/** @type {any} */ error) => console.error(error));
  useEffect(() => forget(), [path.join("/")]);
  if (error) return html`<${Failure} error=${error} retry=${forget} />`;
  const [name = "threads", thread, tab = "chat"] = path;
  const ofThread = name === "threads" && thread !== undefined;
  const screen = ofThread ? OF_THREAD[tab] : SCREENS[name];
  if (!screen || (screen.needs && !may(screen.needs))) {
    return html`<${Empty} icon="search" title=${t("no_screen")}><a href=${href(["threads"])}>${t("screens.threads")}</a><//>`;
  }
  document.title = `${t(`screens.${ofThread ? tab : name}`)} · turnlog`;
  if (!ofThread) return html`<${Loaded} key=${name} screen=${screen} path=${path} query=${query} />`;
  return html`<div class="thread-frame"><${ThreadHead} thread=${thread} tab=${tab} tabs=${OF_THREAD} />
    <${Loaded} key=${`${thread}/${tab}`} screen=${screen} thread=${thread} path=${path} query=${query} /></div>`;
}

function Page() {
  const signedIn = useStore(session);
  const words = useStore(language);
  useStore(theme);
  const { path, query } = useRoute();
  const main = useRef(/** @type {any} */ (null));
  const opened = useRef(false);
  const [menuOpen, setMenuOpen] = useState(false);
  useEffect(() => {
    setMenuOpen(false);
    if (opened.current) main.current?.focus({ preventScroll: true });
    opened.current = true;
  }, [path.join("/")]);
  useEffect(() => {
    const search = (/** @type {any} */ event) => {
      if (event.key !== "/" || event.target.matches("input, textarea, select, [contenteditable]")) return;
      const field = main.current?.querySelector("input[type=search]");
      if (field) { event.preventDefault(); field.focus(); }
    };
    addEventListener("keydown", search);
    return () => removeEventListener("keydown", search);
  }, []);
  if (!signedIn) return html`<${SignIn} key=${words} /><${Toasts} />`;
  return html`<div class="page" key=${words}>
    <a class="skip" href="#main" onClick=${(/** @type {any} */ event) => { event.preventDefault(); main.current.focus(); }}>${t("skip")}</a>
    <header class="top"><button class="icon-button" aria-label=${t("menu")} aria-expanded=${menuOpen} onClick=${() => setMenuOpen(!menuOpen)}><${Icon} name="menu" /></button><b>turnlog</b></header>
    <${Menu} screens=${SCREENS} current=${path[0] ?? "threads"} open=${menuOpen} onClose=${() => setMenuOpen(false)} />
    <main id="main" ref=${main} tabindex="-1"><${Routed} path=${path} query=${query} /></main>
    <${Questions} /><${Toasts} />
  </div>`;
}

/** Signs in with the ticket of a printed link, or checks the stored token; then draws the page. */
async function begin() {
  const ticket = /^#ticket=([\w-]+)$/.exec(location.hash)?.[1];
  if (ticket) {
    history.replaceState(null, "", "#/threads");
    dispatchEvent(new HashChangeEvent("hashchange"));
    session.set(null);
    try {
      session.set(await post("/api/sign-in", { body: { ticket } }));
    } catch (/** @type {any} */ error) {
      signOut(error.message);
    }
  } else if (session.get()) {
    get("/api/caller").catch(() => {}); // an expired token gets a 401, which signs out
  }
  render(html`<${Page} />`, /** @type {any} */ (document.getElementById("page")));
}

begin();
