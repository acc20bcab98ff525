// Appends turns to a conversation, reads its context, recalls, and streams an answer of turnlog's agent.
import createClient from "openapi-fetch";
import type { paths } from "./turnlog.d.ts";

const baseUrl = process.env.TURNLOG_URL ?? "http://127.0.0.1:8484";
const turnlog = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${process.env.TURNLOG_KEY}` } });
const path = { thread: `typescript-${Date.now()}` };

function given<T>(result: { data?: T; error?: unknown }): NonNullable<T> {
  if (result.data == null) throw new Error(JSON.stringify(result.error));
  return result.data;
}

const turns = [
  { role: "user", content: "My corgi is called Sesame." },
  { role: "assistant", content: "A good name for a corgi." },
];
const appended = given(await turnlog.POST("/api/threads/{thread}/turns", { params: { path }, body: { turns } }));
console.log("appended", appended.length);

const query = { tokens: 2000 };
const context = given(await turnlog.GET("/api/threads/{thread}/context", { params: { path, query } }));
console.log("context", context.messages.length > 0);

const found = given(await turnlog.POST("/api/recall", { body: { query: "What is the corgi called?", thread: path.thread } }));
console.log("recalled", found.items[0].text);

const answer = await turnlog.POST("/api/threads/{thread}/answers/stream", {
  params: { path },
  body: { message: "What is my corgi called?" },
  parseAs: "stream",
});
let text = "";
for await (const piece of given(answer).pipeThrough(new TextDecoderStream())) text += piece;
const events = text.split(/\r?\n\r?\n/).map((event) => event.match(/^event: (.*)\r?\ndata: (.*)/m));
console.log("answered", events.flatMap((event) => (event?.[1] === "content" ? JSON.parse(event[2]).chunk : [])).join(""));
