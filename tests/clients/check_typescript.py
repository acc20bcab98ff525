"""Checks the types of the TypeScript package in docs/typescript and its examples, and runs them (`make clients`)."""

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.api import Serve
from helpers.stage import MemoryServer
from installed import node, with_packages

EXAMPLE = Path(__file__).parents[2] / "docs/typescript"
COMPILER = "node_modules/typescript/bin/tsc"
STRICT = ["--strict", "--noEmit", "--allowImportingTsExtensions", "--erasableSyntaxOnly", "--skipLibCheck"]
MODULES = ["--target", "esnext", "--module", "nodenext", "--lib", "esnext,dom,dom.iterable,dom.asynciterable"]
PROGRAM = Path(__file__).parent / "programs/use_memory_middleware.ts"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a copy of the example in a folder where Node finds its packages."""
    return Path(shutil.copytree(EXAMPLE, with_packages(tmp_path), dirs_exist_ok=True))


async def run(folder: Path, *words: Any, **environment: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run, [node(), *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_the_package_and_its_examples_have_no_type_errors(folder: Path) -> None:
    shutil.copy(PROGRAM, folder)
    (folder / "stopped.ts").write_text(STOPPED, "utf-8")
    (folder / "node.d.ts").write_text("declare const process: { env: Record<string, string | undefined> };\n", "utf-8")
    await run(folder, COMPILER, *STRICT, *MODULES, "example.ts", PROGRAM.name, "stopped.ts", "node.d.ts")


async def test_the_example_appends_recalls_and_streams_an_answer(serve: Serve, folder: Path) -> None:
    async with serve("agent") as api:
        said = await run(folder, "example.ts", TURNLOG_URL=api.url, TURNLOG_KEY=api.token())
    assert said.startswith("appended 2\ncontext true\nrecalled My corgi is called Sesame.\nanswered ")
    assert "Sesame" in said.rpartition("answered ")[2]


async def test_a_model_of_the_ai_sdk_gets_a_memory(serve: Serve, model: MemoryServer, folder: Path) -> None:
    """Questions are also stored when the model first only calls a tool, when the model fails, and when the reader stops
    early. In the last case the partial answer is stored, too."""
    shutil.copy(PROGRAM, folder)
    for text in ("Noted.", "Sesame.", ""):
        model.reply(text, tool_calls=[] if text else [("weather", {})])
    model.reply("It rains.")
    model.reply("Once upon a time there was a corgi.")
    model.fail(500)
    async with serve() as api, api.client() as ann:
        environment = {"TURNLOG_URL": api.url, "TURNLOG_KEY": api.token(), "MODEL_URL": model.url}
        said = await run(folder, PROGRAM.name, **environment)
        assert said.strip() == '["Noted.","Sesame.","It rains.","no answer"]'
        turns = (await ann.get("/api/threads/walks/turns")).json()["items"]
    asked = ["My dog is called Sesame.", "What is my dog called?", "What is the weather?"]
    assert [turn["content"] for turn in turns[:6]] == [asked[0], "Noted.", asked[1], "Sesame.", asked[2], "It rains."]
    assert [turn["role"] for turn in turns[6:]] == ["user", "assistant", "user"]
    story, beginning, last = (turn["content"] for turn in turns[6:])
    assert (story, last) == ("Tell me a story.", "Are you there?") and "Once upon a time there was a corgi.".startswith(
        beginning
    )
    system = model.bodies("chat")[1]["messages"][0]
    assert system["role"] == "system" and "Sesame" in system["content"]


STOPPED = """
import { connect, need, type AnswerEvent } from "./index.ts";

let calls = 0;
const counted: typeof globalThis.fetch = (request) => {
  calls += 1;
  return fetch(request);
};
const key = process.env.TURNLOG_KEY ?? "";
const turnlog = connect({ baseUrl: process.env.TURNLOG_URL, key, fetch: counted });
const params = { path: { thread: "stopped" } };
const names: unknown[] = [];
async function stopped(work: (stop: AbortController) => Promise<unknown>): Promise<void> {
  calls = 0;
  const stop = new AbortController();
  const error = await work(stop).catch((error: Error) => error);
  names.push(error instanceof DOMException && error.name, calls);
}
// In the middle of a stream, of a request, and while a request waits for its next try.
await stopped(async (stop) => {
  for await (const { event, data } of turnlog.ask("stopped", "What is my corgi called?", { signal: stop.signal })) {
    if (event === "context" && data.dropped === 0) stop.abort();
  }
});
await stopped(async (stop) => {
  setTimeout(() => stop.abort(), 50);
  const question = { params, body: { message: "Hello?" }, signal: stop.signal };
  need(await turnlog.POST("/api/threads/{thread}/answers", question));
});
const away = connect({ baseUrl: "http://127.0.0.1:1", key, retries: 1e9, fetch: counted });
await stopped((stop) => {
  setTimeout(() => stop.abort(), 50);
  return away.GET("/api/threads", { signal: stop.signal });
});
names[5] = Number(names[5]) >= 1;
// @ts-expect-error: a restart has no text.
const wrong = (event: AnswerEvent & { event: "restart" }): string => event.data.chunk;
console.log(JSON.stringify(names));
"""


async def test_a_signal_stops_streams_requests_and_retries(serve: Serve, model: MemoryServer, folder: Path) -> None:
    """The model never finishes its answers, so only the signal can end the program."""
    (folder / "stopped.ts").write_text(STOPPED, "utf-8")
    model.hang()
    model.hang()
    async with serve("agent", api_base_url=model.url, model="m") as api:
        said = await run(folder, "stopped.ts", TURNLOG_URL=api.url, TURNLOG_KEY=api.token())
        assert said.strip() == '["AbortError",1,"AbortError",1,"AbortError",true]'
        model.released.set()


FLAKY = """
import { connect, need } from "./index.ts";

let calls = 0;
const broken = async (request: Request): Promise<Response> => {
  const response = await fetch(request);
  calls += 1;
  if (calls === 1) throw new TypeError("the connection broke after the server had answered");
  if (!response.body || !request.url.includes("stream")) return response;
  let read = 0;
  const cut = new TransformStream({
    transform(chunk, controller) {
      read += 1;
      if (read > 2) controller.error(new TypeError("cut"));
      else controller.enqueue(chunk);
    },
  });
  return new Response(response.body.pipeThrough(cut), response);
};
const key = process.env.TURNLOG_KEY ?? "";
const turnlog = connect({ baseUrl: process.env.TURNLOG_URL, key, fetch: broken as typeof fetch });
const body = { turns: [{ role: "user" as const, content: "My corgi is called Sesame." }] };
const path = { thread: "broken" };
need(await turnlog.POST("/api/threads/{thread}/turns", { params: { path }, body }));
let text = "";
for await (const { event, data } of turnlog.ask("broken", "What is my corgi called?")) {
  if (event === "content") text += data.chunk;
}
const turns = need(await turnlog.GET("/api/threads/{thread}/turns", { params: { path } })).items;
const asked = turns.filter((turn) => turn.role === "user").length;
console.log(JSON.stringify([asked, text === turns.at(-1)?.content]));
"""


async def test_a_broken_write_is_done_once_and_a_cut_stream_goes_on(serve: Serve, folder: Path) -> None:
    (folder / "flaky.ts").write_text(FLAKY, "utf-8")
    async with serve("agent") as api:
        said = await run(folder, "flaky.ts", TURNLOG_URL=api.url, TURNLOG_KEY=api.token())
    assert said.strip() == "[2,true]"
