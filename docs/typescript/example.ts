// Appends turns to a conversation, reads its context, recalls, and streams an answer of turnlog's agent.
import { connect, need } from "./index.ts";

const turnlog = connect({ baseUrl: process.env.TURNLOG_URL, key: process.env.TURNLOG_KEY ?? "" });
const path = { thread: `typescript-${Date.now()}` };

const turns = [
  { role: "user" as const, content: "My corgi is called Sesame." },
  { role: "assistant" as const, content: "A good name for a corgi." },
];
const appended = need(await turnlog.POST("/api/threads/{thread}/turns", { params: { path }, body: { turns } }));
console.log("appended", appended.length);

const query = { tokens: 2000 };
const context = need(await turnlog.GET("/api/threads/{thread}/context", { params: { path, query } }));
console.log("context", context.messages.length > 0);

const found = need(await turnlog.POST("/api/recall", { body: { query: "What is the corgi called?", thread: path.thread } }));
console.log("recalled", found.items[0].text);

let answer = "";
for await (const { event, data } of turnlog.ask(path.thread, "What is my corgi called?")) {
  if (event === "content") answer += data.chunk;
}
console.log("answered", answer);
