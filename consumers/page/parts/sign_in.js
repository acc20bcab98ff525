// The form for signing in with a token, shown if nobody is signed in. A printed link signs in before this is shown.
import { html, useRef, useState } from "../html.js";
import { send } from "../api.js";
import { t } from "../i18n.js";
import { session, signedOutBecause } from "../session.js";
import { useStore } from "../store.js";
import { Failure } from "./common.js";
import { Preferences } from "./menu.js";

export function SignIn() {
  const reason = useStore(signedOutBecause);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const field = useRef(/** @type {any} */ (null));
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    const token = field.current.value.trim();
    setBusy(true);
    try {
      const caller = await (await send("GET", "/api/caller", { headers: { Authorization: `Bearer ${token}` } })).json();
      signedOutBecause.set(null);
      session.set({ token, caller });
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`<main class="sign-in">
    <form class="card stack" onSubmit=${submit}>
      <img src="icon.svg" alt="" width="40" height="40" />
      <h1>${t("sign_in.title")}</h1>
      <p class="muted">${t("sign_in.about")}</p>
      <pre class="command"><code>turnlog page --open</code></pre>
      ${reason && !error && html`<p class="note" role="status">${reason}</p>`}
      <${Failure} error=${error} />
      <label class="field"><span class="field-label">${t("sign_in.token")}</span>
        <input ref=${field} type="password" autocomplete="off" spellcheck=${false} required placeholder="eyJ… / tl_…" /></label>
      <button class="button primary" disabled=${busy}>${t("sign_in.action")}</button>
      <p class="muted small">${t("sign_in.kept")}</p>
      <div class="sign-in-foot"><${Preferences} /></div>
    </form>
  </main>`;
}
