"""Tools about the forum: search, popular posts, and material to answer a member's question."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from turnlog.agent.team.advising.sample import NOTE, Post, find_school, posts
from turnlog.agent.team.tools import Mistake, Use, tool

Topic = Literal["activities", "essay", "life", "money", "planning", "results", "schools", "testing", "visa"]
_LATIN, _CHINESE = re.compile(r"[a-z0-9]{2,}", re.IGNORECASE), re.compile(r"[\u4e00-\u9fff]{2,}")
_COMMON = frozenset(
    ("the", "and", "for", "you", "how", "what", "when", "where", "does", "did", "with", "that", "this", "are", "was")
)
TITLE_WEIGHT, LIKE_WEIGHT, ANSWER_WEIGHT, VIEWS_FOR_A_LIKE = 3, 1, 2, 50


@tool
def search_forum_posts(
    query: Annotated[str, Field(min_length=1, description="words to look for")],
    topic: Topic | None = None,
    school_id: Annotated[str | None, Field(description="only posts about this school")] = None,
    limit: Annotated[int, Field(ge=1, le=20)] = 5,
) -> dict[str, Any]:
    """Searches the forum's posts and answers by words, English or Chinese; the best match first, newer before older."""
    about = None if school_id is None else find_school(school_id).id
    fitting = [
        (points, post)
        for post in _of_topic(topic)
        if about in (None, post.school_id) and (points := matching(query, post))
    ]
    fitting.sort(key=lambda pair: (pair[0], pair[1].date), reverse=True)
    return {"posts": [post for _, post in fitting[:limit]], "found": len(fitting), "note": NOTE}


@tool
def get_popular_discussions(
    use: Use,
    topic: Topic | None = None,
    days: Annotated[int, Field(ge=1, le=3650, description="only posts of the last days, in this number")] = 365,
    limit: Annotated[int, Field(ge=1, le=20)] = 5,
) -> dict[str, Any]:
    """Returns the forum's most popular discussions, by likes, answers and views."""
    since = use.now.date() - timedelta(days=days)
    recent = [post for post in _of_topic(topic) if since <= post.date <= use.now.date()]
    ranked = sorted(recent, key=popularity, reverse=True)
    shown = [
        {"id": post.id, "title": post.title, "topic": post.topic, "date": post.date, "likes": post.likes}
        | {"answers": len(post.answers), "views": post.views}
        for post in ranked[:limit]
    ]
    return {"discussions": shown, "found": len(recent), "note": NOTE}


@tool
def answer_forum_question(
    post_id: Annotated[str, Field(description="id of a post, such as p017")],
) -> dict[str, Any]:
    """Collects members' answers to a post and to other posts on the same question, most liked first, as material for an
    answer. It does not post anything."""
    wanted = next((post for post in posts() if post.id == post_id.strip().lower()), None)
    if wanted is None:
        raise Mistake(f"there is no post {post_id!r}; search_forum_posts finds posts and their ids")
    related = [post for post in posts() if post.id != wanted.id and matching(wanted.title, post) >= TITLE_WEIGHT]
    answers = {(reply.text, reply.author): reply for post in (wanted, *related) for reply in post.answers}
    liked = sorted(answers.values(), key=lambda reply: -reply.likes)
    return {"question": wanted, "answers": liked[:8], "related_posts": [post.id for post in related[:8]], "note": NOTE}


def matching(query: str, post: Post) -> int:
    """Returns how many words of the query a post contains; a word in the title counts three times."""
    texts = [reply.text for reply in post.answers]
    body, title = _terms(" ".join([post.text, post.topic, *texts])), _terms(post.title)
    return sum(TITLE_WEIGHT if term in title else 1 for term in _terms(query) if term in title or term in body)


def popularity(post: Post) -> int:
    """Returns a number that orders posts: a like counts 1, an answer 2, fifty views 1."""
    return LIKE_WEIGHT * post.likes + ANSWER_WEIGHT * len(post.answers) + post.views // VIEWS_FOR_A_LIKE


def _terms(text: str) -> set[str]:
    """Returns Latin words, and pairs of adjacent Chinese characters."""
    pairs = {run[at : at + 2] for run in _CHINESE.findall(text) for at in range(len(run) - 1)}
    return pairs | {word.lower() for word in _LATIN.findall(text)} - _COMMON


def _of_topic(topic: Topic | None) -> Sequence[Post]:
    return [post for post in posts() if topic in (None, post.topic)]
