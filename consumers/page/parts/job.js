// Follows a job of the server to its end, and shows its progress.
import { html } from "../html.js";
import { Problem, events, path } from "../api.js";
import { t } from "../i18n.js";
import { Meter } from "./bars.js";
import { Failure } from "./common.js";
import { number, percent } from "./format.js";

/** Waits until a job has ended, and returns its last state. @param {any} begun @param {(job: any) => void} onChange */
export async function followed(begun, onChange) {
  onChange(begun);
  let last = begun;
  for await (const { data } of events("GET", path`/api/jobs/${begun.id}/events`)) onChange(last = data);
  return last;
}

/** Shows the progress of a job. @param {{job: any}} props */
export function Progress({ job }) {
  if (job.state === "failed") return html`<${Failure} error=${new Problem(job.error?.status ?? 500, job.error)} />`;
  const share = job.state === "done" ? 1 : job.total ? job.done / job.total : 0;
  return html`<div role="status"><${Meter} label=${t(job.state === "done" ? "operation.done" : "operation.runs")} value=${share} kind=${job.state === "done" ? "good" : "accent"}
    text=${job.state === "done" ? percent(1) : job.total ? percent(share) : number(job.done)} /></div>`;
}
