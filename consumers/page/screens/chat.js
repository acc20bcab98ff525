// Not built yet.
import { html } from "../html.js";
import { Empty } from "../parts/common.js";

export default () => html`<${Empty} icon="chat" title="…" />`;
