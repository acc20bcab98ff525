"""Tools about essays: read, measure, polish, outline, and ideas from the applicant's own life."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from turnlog.agent.team.advising.applicant import profile_of
from turnlog.agent.team.tools import Mistake, Records, Use, tool

ESSAYS = "essays"
Style = Literal["formal", "vivid", "concise"]
EssayId = Annotated[str, Field(description="id from get_essays")]
_WORD = re.compile(r"[a-z0-9]+(?:['’-][a-z0-9]+)*|[\u4e00-\u9fff]", re.IGNORECASE)
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？]*")
_CONCRETE = re.compile(
    r"\d|[“\"「《]|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|hundred)\b|[一二三四五六七八九十两百]",
    re.I,
)
STOCK = (
    "in conclusion",
    "since the dawn of time",
    "i am passionate about",
    "life-changing",
    "changed my life",
    "make a difference",
    "the person i am today",
    "i will never forget",
    "ever since i was",
    "outside my comfort zone",
    "leadership and teamwork",
    "总而言之",
    "从小到大",
    "受益匪浅",
    "让我明白了",
    "人生的意义",
)
STYLES = {
    "formal": "Make the tone formal: no slang, no contractions, complete sentences.",
    "vivid": "Make it vivid: prefer concrete nouns and verbs that the text already implies; invent no facts.",
    "concise": "Make it concise: cut what repeats, fillers and empty openings; keep every fact.",
}
KEEP = (
    "You edit an applicant's essay. Keep their voice, language, facts and order. Add nothing that is not in the text. "
    "Answer with the edited essay alone."
)


@tool
async def get_essays(use: Use, essay_id: EssayId | None = None) -> dict[str, Any]:
    """Returns the applicant's saved essays with their prompts and word counts; with essay_id, only that essay with its
    whole text."""
    if essay_id is not None:
        essay = await _essay(use.records, essay_id)
        return {"essay": essay | {"words": words(essay["text"])}}
    essays = await use.records.all(ESSAYS)
    return {"essays": [_listed(key, essay) for key, essay in sorted(essays.items())]}


@tool
async def review_essay(use: Use, essay_id: EssayId) -> dict[str, Any]:
    """Measures an essay for a review by five criteria (personality, detail, structure, language, relevance): length
    against the limit, stock phrases, concrete sentences, sentence and paragraph lengths, words of the prompt. It
    counts, but does not judge: base the advice on the numbers and on the text."""
    essay = await _essay(use.records, essay_id)
    return {"essay_id": essay_id, "text": essay["text"], "measured": review(essay["text"], essay)}


@tool(retries=0, writes=True, timeout_s=30)
async def polish_essay(use: Use, essay_id: EssayId, style: Style = "concise") -> dict[str, Any]:
    """Edits a saved essay in a style (formal, vivid, concise) with a language model and saves the result as a new
    version beside it. The essay itself stays."""
    essay = await _essay(use.records, essay_id)
    if use.write is None:
        raise Mistake("no language model is configured that could edit a text; give advice from review_essay instead")
    edited = (await use.write(f"{KEEP} {STYLES[style]}", essay["text"])).strip()
    if not edited:
        raise Mistake("the language model returned no text; nothing was saved")
    key = f"{essay_id}-{style}"
    version = {**essay, "id": key, "text": edited, "version_of": essay_id, "style": style}
    await use.records.put(ESSAYS, key, version, use.effect)
    saved = await use.records.get(ESSAYS, key) or version  # of an earlier attempt, if this call is repeated
    text = saved["text"]
    return {"saved_as": key, "text": text, "words_before": words(essay["text"]), "words_after": words(text)}


@tool
async def generate_outline(
    use: Use,
    prompt: Annotated[str, Field(min_length=3, description="the essay's question")],
    topic: Annotated[str | None, Field(description="what the applicant wants to tell")] = None,
    word_limit: Annotated[int, Field(ge=50, le=2000)] = 650,
) -> dict[str, Any]:
    """Returns an outline for an essay: sections with their purpose and number of words, and the activities and awards
    of the applicant's profile, those that fit the question first. The applicant writes the sentences."""
    profile = await profile_of(use.records)
    facts = _fitting(f"{prompt} {topic or ''}", [*profile.activities, *profile.awards])
    sections = [
        {"section": name, "purpose": purpose, "words": round(word_limit * share / 5) * 5}
        for name, purpose, share in _sections(prompt)
    ]
    return {"prompt": prompt, "topic": topic, "sections": sections, "facts_that_fit": facts}


@tool
async def brainstorm_ideas(
    use: Use,
    prompt: Annotated[str, Field(min_length=3, description="the essay's question")],
    count: Annotated[int, Field(ge=1, le=10)] = 5,
) -> dict[str, Any]:
    """Returns starting points for an essay: each is one thing in the applicant's own profile and a question about it.
    It does not invent experiences."""
    profile = await profile_of(use.records)
    material = _fitting(prompt, [*profile.activities, *profile.awards])
    if not material:
        raise Mistake("the profile has no activities and no awards; ask what the applicant does with their time")
    pairs = [(material[at % len(material)], QUESTIONS[at % len(QUESTIONS)]) for at in range(count)]
    return {
        "prompt": prompt,
        "ideas": [{"from_profile": fact, "ask": question} for fact, question in dict.fromkeys(pairs)],
    }


def words(text: str) -> int:
    """Returns the number of words; each Chinese character counts as one."""
    return len(_WORD.findall(text))


def review(text: str, essay: dict[str, Any]) -> dict[str, Any]:
    """Returns numbers that describe an essay, by criterion, such as words over the limit and stock phrases."""
    sentences = [sentence.strip() for sentence in _SENTENCE.findall(text) if words(sentence)]
    lengths, lower = [words(sentence) for sentence in sentences], text.lower()
    concrete = [sentence for sentence in sentences if _CONCRETE.search(sentence)]
    paragraphs = [words(part) for part in re.split(r"\n\s*\n", text) if part.strip()]
    count, limit = words(text), essay.get("word_limit")
    asked = {word.lower() for word in _WORD.findall(essay.get("prompt") or "") if len(word) > 4}
    answered = sorted(word for word in asked if word in lower)
    return {
        "words": count,
        "word_limit": limit,
        "over_limit_by": max(0, count - limit) if limit else 0,
        "personality": {"stock_phrases": [phrase for phrase in STOCK if phrase in lower]},
        "detail": {"concrete_sentences": len(concrete), "of": len(sentences)},
        "structure": {"paragraph_words": paragraphs},
        "language": {"longest_sentence_words": max(lengths, default=0), "mean_sentence_words": _mean(lengths)},
        "relevance": {"words_of_the_prompt": answered, "of": len(asked)},
    }


QUESTIONS = (
    "Which single moment of it would a friend remember, and what was on the table, in the air, in your hands?",
    "What went wrong in it, and what did you do in the next ten minutes?",
    "What did you believe before it that you do not believe now?",
    "Who would miss it if you stopped, and how would they notice?",
    "What do you know about it that a book does not say?",
)


def _sections(prompt: str) -> list[tuple[str, str, float]]:
    """Returns (name, purpose, share of the words) of each section that fits the question."""
    if re.search(r"\bwhy\b|为什么", prompt, re.IGNORECASE):
        return [
            ("A question you have", "where your interest began, in one scene", 0.25),
            ("What you did about it", "one or two things done, with results", 0.35),
            ("Why here", "courses, people or places that carry it on", 0.3),
            ("What you bring", "what others will have of you", 0.1),
        ]
    return [
        ("Scene", "one moment, with place, time and things", 0.25),
        ("What was at stake", "why it mattered to you then", 0.2),
        ("What you did", "decisions, also wrong ones, and what came of them", 0.35),
        ("What is different now", "shown by something you do today", 0.2),
    ]


def _fitting(question: str, facts: list[str]) -> list[str]:
    """Returns the facts; those that share words with the question come first."""
    asked = {word.lower() for word in _WORD.findall(question) if len(word) > 3}
    return sorted(facts, key=lambda fact: -len(asked & {word.lower() for word in _WORD.findall(fact)}))


def _mean(numbers: list[int]) -> float:
    return round(sum(numbers) / len(numbers), 1) if numbers else 0.0


def _listed(key: str, essay: dict[str, Any]) -> dict[str, Any]:
    shown = {name: essay.get(name) for name in ("title", "prompt", "word_limit") if essay.get(name) is not None}
    return {"id": key, **shown, "words": words(essay["text"]), "begins": essay["text"][:80]}


async def _essay(records: Records, key: str) -> dict[str, Any]:
    """Returns a saved essay. Raises Mistake."""
    if (essay := await records.get(ESSAYS, key)) is None:
        saved = ", ".join(sorted(await records.all(ESSAYS))) or "none"
        raise Mistake(f"there is no essay {key!r}; saved essays: {saved}")
    return essay
