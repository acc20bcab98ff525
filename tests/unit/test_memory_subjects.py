"""Sentences in both languages show whose fact is stated, and which statements are not lasting facts."""

import pytest
from helpers.dated_claims import DecidedMemories
from helpers.extraction import apply_rules, contents, extractor_turn, found
from hypothesis import assume, given
from hypothesis import strategies as st

from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.proposals import candidates
from turnlog.agent.memory.extraction.rules import load_rules
from turnlog.events.contracts import Memory

OF_OTHERS = [
    ("我妈妈的邮箱是a@b.com", "妈妈的邮箱：a@b.com", "妈妈", {"relation": "妈妈", "email": "a@b.com"}),
    ("My mother's email is a@b.com.", "mother's email: a@b.com", "mother", {"relation": "mother", "email": "a@b.com"}),
    ("王丽娟的邮箱地址是w@b.com。", "王丽娟的邮箱：w@b.com", "王丽娟", {"email": "w@b.com"}),
    ("Anna's phone number is +1 650-253-0000.", "Anna's phone: +16502530000", "Anna", {"phone": "+16502530000"}),
    (
        "王静雅是我的母亲，其联系电话是19826860822。",
        "妈妈的电话：+8619826860822",
        "妈妈",
        {"relation": "妈妈", "phone": "+8619826860822"},
    ),
    ("My daughter's SAT score is 1450.", "daughter's SAT 1450", "daughter", {"relation": "daughter", "sat": "1450"}),
    ("我女儿的GPA是3.9", "女儿的GPA是3.90", "女儿", {"relation": "女儿", "gpa": "3.90"}),
]
OF_RELATIVES = [
    ("My son Max is 7 years old.", "son Max is 7 years old", "Max", {"relation": "son", "age": "7"}),
    ("女儿小红今年五岁。", "女儿小红5岁", "小红", {"relation": "女儿", "age": "5"}),
    ("我女儿小红对花生过敏。", "女儿小红对花生过敏", "小红", {"relation": "女儿", "allergy": "花生"}),
    ("我老婆叫李静，是医生。", "老婆李静的职业是医生", "李静", {"relation": "老婆", "job": "医生"}),
    ("My wife Ann is allergic to nuts.", "wife Ann is allergic to nuts", "Ann", {"relation": "wife"}),
    ("My husband's a nurse.", "husband works as nurse", "husband", {"relation": "husband", "job": "nurse"}),
    ("My brother's name is Jack and he lives in Oslo.", "brother Jack lives in Oslo", "Jack", {"lives-in": "Oslo"}),
    ("我妈妈农历八月十五生日。", "妈妈的生日是农历八月十五", "妈妈", {"birthday-lunar": "农历八月十五"}),
    ("我表姐的生日是5月3日。", "表姐的生日是05-03", "表姐", {"birthday": "05-03"}),
    ("My brother Tom just started at Acme.", "brother Tom works at Acme", "Tom", {"employer": "Acme"}),
    ("I cook, because my husband is from Peru.", "husband comes from Peru", "husband", {"home-town": "Peru"}),
    ("My grandmother, who is 91, still lives alone in Rome.", "grandmother lives in Rome", "grandmother", {}),
    ("我婆婆身高160。", "婆婆身高160", "婆婆", {"height": "160"}),
    ("I'm vegan, and my wife is a vegetarian.", "wife's diet: vegetarian", "wife", {"diet": "vegetarian"}),
]
NAMED = [
    ("Our kids Tom and Lily start school today.", [("PERSON", "Tom", "child"), ("PERSON", "Lily", "child")]),
    ("We have two dogs, Rex and Bella.", [("ANIMAL", "Rex", "dog"), ("ANIMAL", "Bella", "dog")]),
    ("I live with my girlfriend Julia.", [("PERSON", "Julia", "girlfriend")]),
    ("I've got a small daughter named Mia.", [("PERSON", "Mia", "daughter")]),
    ("儿子叫小明，女儿叫小红。", [("PERSON", "小明", "儿子"), ("PERSON", "小红", "女儿")]),
    ("我家有只猫叫咪咪。", [("ANIMAL", "咪咪", "猫")]),
]
CONTINUED = [
    ("我叫王芳，今年三十岁，住在上海，是一名程序员。", ["名字是王芳", "30岁", "住在上海", "职业是程序员"]),
    ("I'm 34, live in Leeds and work as a nurse.", ["Is 34 years old", "Lives in Leeds", "Works as nurse"]),
    ("我家的柯基叫芝麻，今年四岁。", ["宠物：柯基叫芝麻"]),
    ("我有一只鹦鹉，会说粤语。", ["宠物：一只鹦鹉"]),
    ("我家在北京，今年二十岁。", ["20岁", "家在北京"]),
    ("我喜欢巴赫，还爱听肖邦的钢琴曲。", ["喜欢巴赫", "喜欢听肖邦的钢琴曲"]),
]
KEPT = [
    ("我的工作邮箱是a@b.com", ["邮箱：a@b.com"]),
    ("My work email is a@b.com", ["Email: a@b.com"]),
    ("My mom and I share it; my email is c@d.com.", ["Email: c@d.com"]),
    ("I'm 87, and retired.", ["Is 87 years old"]),
    ("I work for Initech.", ["Works at Initech"]),
    ("I like books from the $2.99 shelf.", ["Likes books from the $2.99 shelf"]),
    (
        "Always include version numbers when I ask about software dependencies.",
        ["Wishes: Always include version numbers when I ask about software dependencies"],
    ),
    ("我问行程的时候请你不要用表格", ["要求：我问行程的时候不要用表格"]),
    ("Remember to answer in Chinese.", ["to answer in Chinese"]),
    ("记得明天带伞", ["明天带伞"]),
    ("I've decided to quit my job.", ["Decided: quit my job"]),
    ("我决定辞职", ["决定辞职"]),
    ("我住在的那个小区叫金色家园", ["住在金色家园"]),
    ("我住在的金色家园真心不错", ["住在金色家园"]),
    ("I need a resume as a 54-year-old TV producer.", ["Is 54 years old", "Works as TV producer"]),
    ("作为一名54岁的记者，我想休息一下。", ["54岁", "职业是记者"]),
    ("I earn about $85,000.", ["Earns $85,000"]),
    ("我的年薪是30万", ["年薪30万"]),
    ("I enjoy making bread.", ["Likes making bread"]),
    ("I've decided to use the `HTML5` validation API.", ["Decided: use the `HTML5` validation API"]),
    (
        "I'm trying to split my app, and I've decided on two parts: auth and billing.",
        ["Decided, to split my app: two parts: auth and billing"],
    ),
    ("为了改善睡眠，我决定每天跑步", ["为了改善睡眠，决定每天跑步"]),
    (
        "I like comparing methods to understand which is faster.",
        ["Likes comparing methods to understand which is faster"],
    ),
    (
        "I plan to use the time from July 16-18 for edits.",
        ["Plan: use the time from July 16-18 (2023-07-16 to 18) for edits"],
    ),
    ("I decided to cite the papers found on May 6.", ["Decided: cite the papers found on May 6 (2023-05-06)"]),
    ("I decided to start in January.", ["Decided: start in January (2024-01)"]),
    ("I like helping people.", ["Likes helping people"]),
    ("I love hiking in the mountains.", ["Likes hiking in the mountains"]),
    ("I'm a huge fan of Lord of the Rings!", ["Likes Lord of the Rings"]),
]
NOT_KEPT = [
    "我有个朋友，是一名程序员，住在北京。",
    "我听说老王辞职了，今年四十岁。",
    "我在网上认识一个女孩，住在上海，是医生。",
    "我去了一家餐厅，叫王府井。",
    "我儿子的老师住在上海。",
    "我妈妈的同事今年三十岁。",
    "I have a friend who works at Google and lives in Rome.",
    "I met a man, live in Rome and work as a nurse.",
    "My son's teacher is 30 years old.",
    "My husband isn't a doctor.",
    "I need an example, like tea.",
    "I'm at a restaurant called Nando's.",
    "Her email is a@b.com.",
    "他的邮箱是a@b.com",
    "公司的邮箱是a@b.com",
    "The shop's phone number is +1 650-253-0000.",
    "I'm 87.5% toward my goal.",
    "我今年87.5%的目标",
    "My father, as a 54-year-old farmer, works hard.",
    "I'm working with Ashlee to draft a letter.",
    "我在和王丽一起工作",
    "Her birthday is May 3.",
    "她的生日是5月3日",
    "Remember to stay patient, Ashlee.",
    "Remember to stay patient.",
    "记得保持耐心",
    "I decided to take a break yesterday.",
    "我决定昨天休息",
    "I enjoy making him happy.",
    "I love escaping to that world.",
    "我喜欢让他开心",
    "I've decided to use the",
    "I make $5 profit on each.",
    "`I live in Rome.` is the text that it prints.",
    "My dream is to make a home for these kids.",
    "I love to help, so just ask.",
    "I just like playing for fun!",
    "I love getting lost in the feelings and plots.",
    "I plan to visit some museums in the city.",
    "我计划去城市里的一些博物馆",
]
OWNERS = (
    *("我", "我妈妈", "我爸爸", "我老婆", "我同事", "我舅舅", "王丽娟", "赵国庆"),
    *("My", "My mother's", "My boss's", "Anna's", "Tom's"),
)

RULES = Extractor(load_rules())


@pytest.mark.parametrize(("text", "content", "name", "attributes"), OF_OTHERS)
def test_a_fact_about_somebody_else_is_an_attribute_of_their_entity(
    text: str, content: str, name: str, attributes: dict[str, str]
) -> None:
    [finding] = found(text)
    assert finding.content == content
    assert [(entity.type, entity.name, entity.attributes) for entity in finding.entities] == [
        ("PERSON", name, attributes)
    ]
    assert finding.dedupe_key is not None and finding.dedupe_key.startswith("of:")


@pytest.mark.parametrize(("text", "content", "name", "attributes"), OF_RELATIVES)
def test_a_statement_about_a_relative_is_a_fact_about_them(
    text: str, content: str, name: str, attributes: dict[str, str]
) -> None:
    about = {finding.content: finding for finding in found(text)}
    [entity, *_] = about[content].entities
    assert (entity.type, entity.name) == ("PERSON", name)
    assert attributes.items() <= entity.attributes.items()
    assert about[content].dedupe_key.startswith("of:")


@pytest.mark.parametrize(("text", "entities"), NAMED)
def test_names_of_relatives_and_animals_are_entities(text: str, entities: list[tuple[str, str, str]]) -> None:
    named = [entity for finding in found(text) for entity in finding.entities]
    assert [(entity.type, entity.name, entity.attributes["relation"]) for entity in named] == entities


@pytest.mark.parametrize(("text", "kept"), CONTINUED)
def test_a_clause_without_a_subject_is_about_the_previous_subject(text: str, kept: list[str]) -> None:
    assert contents(text) == kept


@pytest.mark.parametrize(("text", "kept"), KEPT)
def test_facts_about_the_user_are_kept(text: str, kept: list[str]) -> None:
    assert contents(text) == kept


@pytest.mark.parametrize("text", NOT_KEPT)
def test_only_lasting_facts_about_known_people_are_kept(text: str) -> None:
    assert contents(text) == []


def test_two_words_for_one_role_share_a_key_and_colleagues_do_not() -> None:
    mother = {
        finding.dedupe_key
        for finding in found("我妈妈的邮箱是a@b.com", "我母亲的邮箱是c@d.com", "My mom's email is e@f.org")
    }
    assert mother == {"of:mother:email"}
    assert len({finding.dedupe_key for finding in found("我同事的邮箱是a@b.com", "我同事的邮箱是c@d.com")}) == 2


def test_a_sentence_that_is_cut_off_gives_no_memory() -> None:
    text = "I like " + "gardens" * 60
    assert {rejection.reason for rejection in apply_rules(text).rejections} >= {"cut-off"}


@given(st.sampled_from(OWNERS), st.sampled_from(OWNERS), st.sampled_from(["email", "phone"]))
def test_a_fact_about_one_subject_ends_none_about_another(first: str, second: str, what: str) -> None:
    assume(first != second and {first, second} not in ({"我", "My"}, {"我妈妈", "My mother's"}))
    decided = DecidedMemories().say(_said(first, what, 1))
    decided.say(_said(second, what, 2), similar=[(row, 0.99) for row in decided.rows])
    assert [row.status for row in decided.rows] == ["valid", "valid"]


FAMILY = (
    *("我", "我妈妈", "我爸爸", "我儿子", "女儿小红", "我老婆李静"),
    *("I", "My father", "My son Max", "My brother", "My wife's name is Ann and she"),
)
KINDS = ("age", "home", "job", "allergy")
_SAME = ({"我", "I"}, {"我爸爸", "My father"})


@given(st.sampled_from(FAMILY), st.sampled_from(FAMILY), st.sampled_from(KINDS))
def test_a_statement_about_a_relative_ends_no_fact_about_others(first: str, second: str, kind: str) -> None:
    assume(first != second and {first, second} not in _SAME)
    decided = DecidedMemories().say(*_stated(first, kind, 1))
    decided.say(*_stated(second, kind, 2), similar=[(row, 0.99) for row in decided.rows])
    assert {row.status for row in decided.rows} == {"valid"}


@given(st.sampled_from([who for who in FAMILY if who not in ("我儿子", "My brother")]), st.sampled_from(KINDS[:3]))
def test_a_later_fact_about_a_relative_ends_the_earlier_one(who: str, kind: str) -> None:
    decided = DecidedMemories().say(*_stated(who, kind, 1)).say(*_stated(who, kind, 2))
    assert sorted(row.status for row in decided.rows) == ["closed", "valid"]


def _stated(who: str, kind: str, n: int) -> list[Memory]:
    """Returns the memories of this kind that the rules find; the name of the person is a separate memory."""
    values = {
        "age": 30 + n,
        "home": ("Oslo", "Rome")[n - 1],
        "job": ("nurse", "pilot")[n - 1],
        "allergy": ("nuts", "milk")[n - 1],
    }
    english = {"age": "am {} years old", "home": "live in {}", "job": "am a {}", "allergy": "am allergic to {}"}
    chinese = {"age": "今年{}岁", "home": "住在{}", "job": "是一名{}", "allergy": "对{}过敏"}
    said = {"Oslo": "奥斯陆", "Rome": "罗马", "nurse": "护士", "pilot": "飞行员", "nuts": "坚果", "milk": "牛奶"}
    if who.isascii():
        verb = english[kind] if who == "I" else english[kind].replace("am ", "is ").replace("live ", "lives ")
        text = f"{who} {verb.format(values[kind])}."
    else:
        text = f"{who}{chinese[kind].format(said.get(str(values[kind]), values[kind]))}。"
    memories = candidates("default", "ann", RULES.extract([extractor_turn(text, n)]).findings)
    [stated] = [memory for memory in memories if memory.category != "family"]
    return [stated]


@given(st.sampled_from(OWNERS), st.sampled_from(["email", "phone"]))
def test_a_new_address_of_one_person_ends_only_their_old_one(owner: str, what: str) -> None:
    assume(owner not in ("我同事", "我舅舅", "My boss's"))
    decided = DecidedMemories().say(_said(owner, what, 1), _said(owner, what, 2))
    assert sorted(row.status for row in decided.rows) == ["closed", "valid"]


def _said(who: str, what: str, n: int) -> Memory:
    value = f"p{n}@example.org" if what == "email" else f"1380013800{n}"
    english = "email is" if what == "email" else "phone number is"
    text = f"{who} {english} {value}" if who.isascii() else f"{who}的{'邮箱' if what == 'email' else '电话'}是{value}"
    [memory] = candidates("default", "ann", RULES.extract([extractor_turn(text, n)]).findings)
    return memory
