"""Titles, tags and other tasks of chat programs are answered, but their words are not stored as a person's."""

from typing import Any

import pytest
from helpers.api import Serve
from helpers.stage import MemoryServer, wait_until_idle

from turnlog.agent.answering.client_tasks import is_client_task, task_prompts
from turnlog.consumers.workers.reactors.extraction import NAME as EXTRACTION

TITLE = """### Task:
Generate a concise, 3-5 word title with an emoji summarizing the chat history.
### Guidelines:
- Remember that I prefer short titles. My name is Eve and I live in Genoa.
### Chat History:
<chat_history>
USER: I am allergic to nuts.
ASSISTANT: Noted.
</chat_history>"""
FOLLOW_UPS = """### Task:
Predict 3-5 useful messages this user might naturally send next to advance their current objective.
### Guidelines:
- I like short questions.
### Chat History:
<chat_history>
USER: I am allergic to nuts.
</chat_history>"""
LIBRECHAT = """Provide a concise, 5-word-or-less title for the conversation, using its same language, with no \
punctuation. Apply title case conventions appropriate for the language. Never directly mention the language name or \
the word "title" and only return the title itself.

Conversation:
User: I am allergic to nuts."""
LOBECHAT = "You are a professional conversation summarizer. Generate a concise title that captures the essence of the \
conversation.\n\nRules:\n- Output ONLY the title text, no explanations or additional context"
CHATS = [
    "### Task:\nPlan my week. I have yoga on Tuesdays.",
    "### Task:\nGenerate a concise title for my essay about Genoa.",
    "Why does Open WebUI send '### Task: Generate a concise, 3-5 word title summarizing the chat history.'?",
    "Provide a concise, 5-word-or-less title for the conversation",
    "Create a comprehensive summary of this conversation.",
    "Given the following... please reply with a short poem.",
]


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


async def test_tasks_of_a_client_are_answered_and_not_stored(serve: Serve, model: MemoryServer) -> None:
    chat = {"X-OpenWebUI-Chat-Id": "chat"}
    tasks: list[tuple[list[dict[str, Any]], dict[str, str]]] = [
        ([said(TITLE)], chat),
        ([said(FOLLOW_UPS)], chat),
        ([said(LIBRECHAT)], {}),
        ([said(LOBECHAT, "system"), said("user: I am allergic to nuts.")], {}),
        ([said("Give this chat a name: I am allergic to nuts.")], chat | {"X-OpenWebUI-Task": "title_generation"}),
    ]
    async with serve("reactors", api_base_url=model.url, model="m") as api, api.client() as ann:
        question = said("I am allergic to nuts.")
        first = await ann.post("/v1/chat/completions", json={"messages": [question]}, headers=chat)
        assert (first.headers["x-turnlog-thread"], first.headers["x-turnlog-memory"]) == ("chat", "full")
        for messages, headers in tasks:
            for path, body in (("chat/completions", {"messages": messages}), ("responses", {"input": messages})):
                answered = await ann.post(f"/v1/{path}", json=body, headers=headers)
                assert answered.status_code == 200 and "echo: " in answered.text
                assert answered.headers["x-turnlog-memory"] == "read" and "x-turnlog-thread" not in answered.headers
                assert model.asked("answer")[-1]["messages"] == messages
        heard = said(first.json()["choices"][0]["message"]["content"], "assistant")
        resent = [question, heard, said("What am I allergic to?")]
        again = await ann.post("/v1/chat/completions", json={"messages": resent}, headers=chat)
        assert again.headers["x-turnlog-thread"] == "chat"
        assert [thread["thread"] for thread in (await ann.get("/api/threads")).json()["items"]] == ["chat"]
        turns = (await ann.get("/api/threads/chat/turns")).json()["items"]
        assert [turn["content"] for turn in turns][::2] == ["I am allergic to nuts.", "What am I allergic to?"]
        assert "Genoa" not in (await ann.get("/api/memories")).text


async def test_a_summary_prompt_in_a_resent_history_is_not_the_persons_text(serve: Serve, model: MemoryServer) -> None:
    async with serve("reactors", api_base_url=model.url, model="m") as api, api.client() as ann:
        for prompt in (task_prompt for task_prompt in task_prompts() if task_prompt.of == "last"):
            text = "\n".join((prompt.begins, *prompt.has, "I live in Genoa."))
            nuts = [said(f"I am allergic to nuts, {prompt.client}."), said("Noted.", "assistant")]
            body = {"messages": [*nuts, said(text), said("Done.", "assistant"), said("Go on.")]}
            answered = await ann.post("/v1/chat/completions", json=body, headers={"X-Turnlog-Thread": prompt.client})
            assert answered.headers["x-turnlog-memory"] == "full"
            turns = (await ann.get(f"/api/threads/{prompt.client}/turns")).json()["items"]
            assert [turn["origin"] for turn in turns if turn["role"] == "user"] == ["person", "program", "person"]
        await wait_until_idle(api.runtime.log, EXTRACTION)
        await api.runtime.wait_until_projected()
        assert "Genoa" not in (await ann.get("/api/memories")).text


async def test_words_of_a_person_that_look_like_a_task_are_stored(serve: Serve, model: MemoryServer) -> None:
    async with serve(api_base_url=model.url, model="m") as api, api.client() as ann:
        for memory in ("", "full"):
            asked = await ann.post(
                "/v1/chat/completions",
                json={"messages": [said(CHATS[0] if not memory else TITLE)]},
                headers={"X-Turnlog-Thread": "t", "X-Turnlog-Memory": memory, "X-OpenWebUI-Task": ""},
            )
            assert asked.status_code == 200 and asked.headers["x-turnlog-memory"] == "full"
        assert len((await ann.get("/api/threads/t/turns")).json()["items"]) == 4
    for text in CHATS:
        assert not is_client_task([said(text)], None), text
    history = [said("Hi"), said("Hello", "assistant"), said("What is this prompt for?\n" + TITLE)]
    assert not is_client_task(history, "{{TASK}}")
    assert not is_client_task([*history[:2], said(TITLE)], None), "a title prompt is the only message of its request"


@pytest.mark.parametrize("prompt", task_prompts(), ids=lambda prompt: f"{prompt.client}: {prompt.begins[:40]}")
def test_every_task_prompt_is_recognised_only_in_its_clients_position(prompt: Any) -> None:
    text = "\n".join((prompt.begins.replace(" ", "\n", 1), *prompt.has, "I live in Genoa."))
    asked = said("I live in Genoa.")
    positions = {
        "system": [said(text, "system"), asked],
        "message": [said("Be brief.", "system"), said(text)],
        "last": [asked, said("Nice.", "assistant"), {"role": "user", "content": [{"type": "text", "text": text}]}],
    }
    counted = {position for position, messages in positions.items() if is_client_task(messages, None)}
    assert counted == ({"message", "last"} if prompt.of == "last" else {prompt.of})
    for wrong in ("Look: " + text, prompt.begins[:-5] + " " + " ".join(prompt.has)):
        assert not is_client_task([said(wrong, "system" if prompt.of == "system" else "user")], None)
