"""The offline provider extracts and quotes in English and Chinese, and says that it is no language model."""

import json

import pytest
from helpers.openai_server import OpenAIServer

from turnlog.agent.context.titles import EARLIER, MEMORIES, NOT_KEPT, OTHER_CONVERSATIONS, TO_FORGET
from turnlog.agent.models import keywords
from turnlog.agent.models.calls import ResilientClient
from turnlog.agent.models.language import is_chinese, sentences, split_speaker
from turnlog.agent.models.offline_chat import OfflineChat
from turnlog.agent.models.offline_tasks import OfflineTextTasks, candidate_sentences, cut, shortlist
from turnlog.agent.models.openai_embeddings import OpenAIEmbedder
from turnlog.agent.models.prompts import DOUBT, DOUBT_ZH
from turnlog.agent.models.protocol import ChatRequest

ENGLISH = [
    "user: Hi! How are you?",
    "user: I want to apply to Stanford University for computer science next fall.",
    "assistant: Great. The scholarship deadline at Stanford University is November 15, 2026.",
    "user: My budget is 40,000 dollars a year, so the scholarship deadline matters.",
    "assistant: Ask your math teacher Ms. Lopez for a recommendation letter before October.",
    "user: Thanks a lot!",
    "user: The recommendation letter is on its way, Ms. Lopez agreed yesterday.",
    "assistant: Then the personal essay about your robotics club is what is left.",
]
CHINESE = [
    "用户: 你好！",
    "用户: 我想申请清华大学的计算机专业，我们的数据库设计作业很难。",
    "助手: 数据库设计可以先画实体关系图。奖学金申请截止日期是11月15日。",
    "用户: 奖学金申请需要推荐信吗？",
    "助手: 需要两封推荐信。API认证的文档下周给你。",
    "用户: API认证我用令牌实现，推荐信请数学老师写。",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "recall_memory",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]


def count(text: str) -> int:
    return len(text) // 3


@pytest.fixture
def tasks() -> OfflineTextTasks:
    return OfflineTextTasks(count)


async def test_an_english_summary_holds_facts_in_order_and_no_small_talk(tasks):
    made = await tasks.summarise(ENGLISH, "", 90)
    lines = made.text.splitlines()
    said = " ".join(ENGLISH)
    assert all(split_speaker(line[2:])[1] in said for line in lines)
    assert [said.index(split_speaker(line[2:])[1]) for line in lines] == sorted(
        said.index(split_speaker(line[2:])[1]) for line in lines
    )
    assert "Stanford University" in made.text and "Thanks" not in made.text
    assert count(made.text) <= 90
    assert (made.usage.model, made.usage.provider, made.usage.cost_usd) == ("offline-extractive", "offline", 0.0)


async def test_a_chinese_summary_keeps_the_dates(tasks):
    made = await tasks.summarise(CHINESE, "", 40)
    assert "11月15日" in made.text or "推荐信" in made.text
    assert 0 < count(made.text) <= 40


async def test_old_key_facts_stay_in_the_rolling_summary(tasks):
    old = "- user: I am seventeen, live in Shanghai and hold a Canadian passport."
    made = await tasks.summarise(ENGLISH, old, 110)
    assert made.text.splitlines()[0] == old


async def test_the_same_input_gives_the_same_summary_and_hash(tasks):
    first, second = await tasks.summarise(ENGLISH, "", 60), await tasks.summarise(ENGLISH, "", 60)
    assert (first.text, first.prompt_hash) == (second.text, second.prompt_hash)


async def test_compress_takes_whole_sentences_of_the_summary(tasks):
    summary = (await tasks.summarise(ENGLISH, "", 200)).text
    shorter = (await tasks.compress(summary, count(summary) // 3)).text
    assert 0 < count(shorter) <= count(summary) // 3
    assert set(shorter.splitlines()) < set(summary.splitlines())


async def test_a_conversation_without_a_fact_gives_an_empty_summary(tasks):
    assert (await tasks.summarise(["user: hi", "assistant: hello!"], "", 100)).text == ""
    assert (await tasks.compress("", 100)).text == ""


async def test_a_sentence_longer_than_the_summary_is_cut():
    assert count(cut("wort " * 100, 20, count)) <= 20
    made = await OfflineTextTasks(count).summarise(["user: " + "budget plan review " * 80], "", 20)
    assert made.text.endswith("…") and count(made.text) <= 20


async def test_an_embedding_server_that_is_down_does_not_stop_the_summary():
    async def no_wait(seconds: float) -> None:
        pass

    with OpenAIServer() as server:
        url = server.url
    embedder = OpenAIEmbedder(
        url, None, "m", count_tokens=len, resilient=ResilientClient(url, secret=None, sleep=no_wait)
    )
    made = await OfflineTextTasks(count, embedder).summarise(ENGLISH, "", 90)
    assert made.text == (await OfflineTextTasks(count).summarise(ENGLISH, "", 90)).text
    await embedder.close()


async def test_the_number_of_embedded_sentences_is_capped():
    with OpenAIServer() as server:
        embedder = OpenAIEmbedder(server.url, None, "m", count_tokens=len)
        long = [f"user: Project number {i} needs a database and {i * 7} servers." for i in range(200)]
        await OfflineTextTasks(count, embedder, max_embedded=25).summarise(long, "", 100)
        await embedder.close()
        assert sum(len(body["input"]) for body in server.bodies("embeddings")) == 25


def test_the_shortlist_leaves_room_for_new_facts():
    old = "\n".join(f"- Old fact number {i} about the harbour tower." for i in range(50))
    shortlisted = shortlist(candidate_sentences(ENGLISH, old), 8)
    assert 0 < sum(s.old for s in shortlisted) <= 4
    assert [s.order for s in shortlisted] == sorted(s.order for s in shortlisted)


async def test_english_topics_are_noun_phrases_with_their_mentions(tasks):
    topics = (await tasks.topics(ENGLISH, 6)).topics
    assert topics["scholarship deadline"] == 2
    assert topics["recommendation letter"] == 2
    assert not {"user", "assistant", "thanks", "want"} & set(topics)


async def test_chinese_topics_are_noun_phrases_with_their_mentions(tasks):
    topics = (await tasks.topics(CHINESE, 6)).topics
    assert (topics["数据库设计"], topics["API认证"]) == (2, 2)
    assert "推荐信" in topics
    assert "用户" not in topics


def test_speakers_are_not_topics_even_by_a_short_name():
    texts = ["Melanie: Mel paints.", "Caroline: Melanie paints lakes, Mel!", "Melanie: Caroline paints lakes."]
    assert not {"mel", "melanie", "caroline"} & {topic.casefold() for topic in keywords.topics(texts, 10)}


def test_topics_are_limited_and_no_topic_is_part_of_another():
    topics = list(keywords.topics([*ENGLISH, *CHINESE], 5))
    assert len(topics) == 5
    assert not any(a != b and a in b for a in topics for b in topics)
    assert keywords.topics([], 5) == {}


def test_sentences_of_both_languages_are_found():
    text = "Dr. Li pays 3.5 dollars. Really? 截止日期是周五。“好的！”他说。\nsee turnlog.toml now"
    assert sentences(text) == [
        "Dr. Li pays 3.5 dollars.",
        "Really?",
        "截止日期是周五。",
        "“好的！”",
        "他说。",
        "see turnlog.toml now",
    ]
    assert is_chinese("API认证") and not is_chinese("Hello 你 world") and not is_chinese("")


async def text_of(messages: list[dict], tools: list[dict] = TOOLS) -> str:
    return (await OfflineChat(count).complete(ChatRequest(messages, tools=tools))).text


async def test_offline_chat_calls_recall_memory_with_the_question_first():
    request = ChatRequest([{"role": "user", "content": "什么时候截止？"}], tools=TOOLS)
    first, second = await OfflineChat(count).complete(request), await OfflineChat(count).complete(request)
    assert first.tool_calls == second.tool_calls
    assert json.loads(first.tool_calls[0].arguments) == {"query": "什么时候截止？"}
    assert (first.text, first.finish_reason) == ("", "tool_calls")


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("When is the deadline?", "[offline, no language model configured] I found:"),
        ("截止日期是什么时候？", "[离线，未配置语言模型] 我找到："),
    ],
)
async def test_offline_chat_quotes_what_recall_found_in_the_language_of_the_question(question, first):
    item = {"text": "The deadline is November 15.", "speaker": "advisor", "time": "2026-03-01T09:00:00Z"}
    messages = [
        {"role": "user", "content": question},
        {"role": "tool", "tool_call_id": "c", "content": json.dumps({"items": [item]})},
    ]
    assert await text_of(messages) == f"{first}\n- (2026-03-01, advisor) “The deadline is November 15.”"


async def test_offline_chat_says_that_nothing_was_found_and_how_to_configure_a_model():
    messages = [{"role": "user", "content": "Where is it?"}, {"role": "tool", "content": '{"items": []}'}]
    answer = await text_of(messages)
    assert "found nothing" in answer and "API_BASE_URL" in answer


async def test_offline_chat_also_quotes_the_window_since_recall_leaves_it_out():
    messages = [
        {"role": "user", "content": "My passport number question goes to the embassy in Ottawa."},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": "Which embassy was it?"},
    ]
    assert "Ottawa" in await text_of(messages, [])


async def test_offline_chat_does_not_quote_the_question_as_its_answer():
    question = {"role": "user", "content": "Which embassy was it?"}
    recalled = {"role": "tool", "content": json.dumps({"items": [{"text": question["content"]}]})}
    answer = await text_of([question, {"role": "assistant", "content": "The embassy in Ottawa."}, question, recalled])
    assert "Ottawa" in answer and question["content"] not in answer


async def test_offline_chat_does_not_quote_its_own_quotes():
    asked = {"role": "user", "content": "Which embassy in Ottawa was it?"}
    first = {"role": "assistant", "content": await text_of([{"role": "user", "content": "Ottawa embassy"}, asked], [])}
    assert "Ottawa embassy" in first["content"]
    assert "Ottawa" not in await text_of([{"role": "user", "content": "Hello."}, first, asked], [])


async def test_offline_chat_reads_plain_text_results_and_content_parts():
    question = [{"type": "text", "text": "What did we say about tea?"}]
    messages = [{"role": "user", "content": question}, {"role": "tool", "content": "Green tea.\n\nBlack tea."}]
    assert (await text_of(messages)).endswith("- “Green tea.”\n- “Black tea.”")


async def test_an_old_tool_result_does_not_answer_a_new_question():
    messages = [
        {"role": "user", "content": "first?"},
        {"role": "tool", "content": "old result"},
        {"role": "assistant", "content": "quoted"},
        {"role": "user", "content": "second?"},
    ]
    assert (await OfflineChat(count).complete(ChatRequest(messages, tools=TOOLS))).tool_calls


async def test_the_stream_is_word_by_word_and_gives_the_same_text():
    messages = [{"role": "user", "content": "你好吗"}, {"role": "tool", "content": "我很好 thank you"}]
    got = [d async for d in OfflineChat(count).stream(ChatRequest(messages, tools=TOOLS))]
    assert got[-1].final is not None
    assert "".join(d.text for d in got) == got[-1].final.text
    assert len(got) > 8


async def test_offline_chat_quotes_the_lines_of_notes_with_their_speakers():
    other = f"{OTHER_CONVERSATIONS}\nParts of it.\n- 2026-05-01 user: I keep bees: two hives.\n[END OF X]"
    notes = f"{MEMORIES}\n- 2026-05-02 Bees: likes them\n\n{EARLIER}\n- 2026-05-03 assistant: Bees fly."
    messages = [{"role": "user", "content": text} for text in (other, "Which bees?")]
    assert (await text_of(messages, [])).splitlines()[1:] == ["- (2026-05-01, user) “I keep bees: two hives.”"]
    messages = [{"role": "user", "content": text} for text in (notes, "Which bees?")]
    assert set((await text_of(messages, [])).splitlines()[1:]) == {
        "- (2026-05-02) Bees: likes them",
        "- (2026-05-03, assistant) “Bees fly.”",
    }


@pytest.mark.parametrize("line", [DOUBT, DOUBT_ZH])
async def test_the_warning_before_a_question_is_not_quoted(line: str) -> None:
    messages = [{"role": "user", "content": line}, {"role": "user", "content": f"What is this: {line}"}]
    made = await OfflineChat(len).complete(ChatRequest(messages))
    assert "found nothing about this" in made.text or "没有找到相关内容" in made.text


def asked(question: str, *turns: str, memories: str = "", items: tuple[str, ...] = ()) -> list[dict]:
    """Returns a request: a question with the block of memories before it and the results of the tool."""
    result = {"items": [{"text": text, "speaker": "user"} for text in items]}
    return [
        *([{"role": "user", "content": f"{MEMORIES}\n{memories}\n[END]"}] if memories else []),
        *({"role": "user", "content": turn} for turn in turns),
        {"role": "user", "content": question},
        {"role": "tool", "content": json.dumps(result)},
    ]


@pytest.mark.parametrize(
    ("question", "said", "answer"),
    [
        ("Forget that I'm allergic to peanuts", "I'm allergic to peanuts.", "You ask to forget something."),
        ("Please forget everything about me", "I tell you everything about me.", "`turnlog clear`"),
        ("忘记我的猫", "我有一只猫，叫豆包。", "你要求忘记一些内容"),
        ("请忘记关于我的一切", "我的一切都好", "`turnlog clear`"),
    ],
)
async def test_a_request_to_forget_is_answered_without_a_quote(question: str, said: str, answer: str) -> None:
    messages = asked(question, said, memories=f"- 2026-05-01 {said}\nPreferences:\n- {TO_FORGET}", items=(said,))
    made = await text_of(messages)
    assert answer in made
    assert said not in made and TO_FORGET not in made and "\n" not in made
    searched = await OfflineChat(count).complete(ChatRequest(messages[:-1], tools=TOOLS))
    assert not searched.tool_calls


async def test_lines_for_a_model_and_requests_to_forget_are_not_quoted() -> None:
    memories = f"- 2026-05-01 My password manager is Keeper\nPreferences:\n- {NOT_KEPT}\n- {TO_FORGET}"
    messages = asked(
        "Which password manager do I use to remember a password?", "Forget my password manager", memories=memories
    )
    assert (await text_of(messages)).splitlines()[1:] == ["- (2026-05-01) My password manager is Keeper"]


@pytest.mark.parametrize(
    ("question", "again", "old", "memory"),
    [
        ("Where do I live?", "where do I live", "I live in Berlin since 2020.", "Lives in Oslo"),
        ("我现在住在哪里？", "我现在住在哪里", "我2020年起住在柏林，住在那里很好。", "住在重庆"),
    ],
)
async def test_valid_memories_are_quoted_before_turns_and_the_question_never(
    question: str, again: str, old: str, memory: str
) -> None:
    made = await text_of(asked(question, again, memories=f"- 2026-05-02 {memory}", items=(question, again, old)))
    assert [line for line in made.splitlines()[1:] if memory in line or old in line] == [
        f"- (2026-05-02) {memory}",
        f"- (user) “{old}”",
    ]
    assert again not in made
    result = {"items": [{"text": old}], "memories": [{"text": memory, "since": "2026-05-02"}]}
    made = await text_of([{"role": "user", "content": question}, {"role": "tool", "content": json.dumps(result)}])
    assert made.index(memory) < made.index(old)


@pytest.mark.parametrize("question", ["What do you know about me?", "你知道我的哪些事？"])
async def test_a_question_for_everything_lists_all_memories_and_the_command(question: str) -> None:
    memories = [f"Fact number {number}" for number in range(9)]
    block = "\n".join(f"- 2026-05-01 {memory}" for memory in memories)
    made = (await text_of(asked(question, memories=block))).splitlines()
    assert made[1:-1] == [f"- (2026-05-01) {memory}" for memory in memories]
    assert "`turnlog memories --user" in made[-1]
