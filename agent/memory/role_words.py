"""Words for a person's role to the user (mother, 同事) in both languages, with their synonyms. Pure."""

from collections.abc import Iterable
from functools import cache

from turnlog.projectors.models.terms import terms

# Roles in English, each with other words for it in both languages. The first Chinese word names the entity in Chinese.
ROLES = {
    "parent": "parents 父母 爸妈",
    "mother": "mom mum mommy mama 妈妈 母亲 老妈 妈",
    "father": "dad daddy papa 爸爸 父亲 老爸 爸",
    "spouse": "配偶 另一半",
    "wife": "老婆 妻子 太太 媳妇",
    "husband": "hubby 老公 丈夫",
    "partner": "爱人 伴侣",
    "significant other": "对象",
    "girlfriend": "gf 女朋友 女友",
    "boyfriend": "bf 男朋友 男友",
    "son": "儿子",
    "daughter": "女儿",
    "child": "kid kids children 孩子 小孩 宝宝",
    "sibling": "siblings 兄弟姐妹",
    "brother": "兄弟",
    "older brother": "哥哥 哥",
    "younger brother": "弟弟",
    "sister": "姐妹",
    "older sister": "姐姐 姐",
    "younger sister": "妹妹",
    "grandparent": "grandparents",
    "grandmother": "grandma 奶奶 外婆 姥姥",
    "grandfather": "grandpa 爷爷 外公 姥爷",
    "mother-in-law": "婆婆 岳母 丈母娘",
    "father-in-law": "公公 岳父 老丈人",
    "sister-in-law": "嫂子 弟媳 小姑子",
    "brother-in-law": "姐夫 妹夫 小舅子",
    "son-in-law": "女婿",
    "daughter-in-law": "儿媳 儿媳妇",
    "grandson": "孙子 外孙",
    "granddaughter": "孙女 外孙女",
    "grandchild": "grandkid grandkids grandchildren",
    "fiancé": "fiance 未婚夫",
    "fiancée": "fiancee 未婚妻",
    "cousin": "",
    "elder cousin (m)": "表哥 堂哥",
    "younger cousin (m)": "表弟 堂弟",
    "elder cousin (f)": "表姐 堂姐",
    "younger cousin (f)": "表妹 堂妹",
    "uncle": "叔叔 舅舅 伯伯 姑父 姨父",
    "aunt": "阿姨 舅妈 婶婶 姑姑 姨妈 伯母",
    "nephew": "侄子 外甥",
    "niece": "侄女 外甥女",
    "boss": "supervisor manager 上司 老板 领导 经理",
    "colleague": "coworker co-worker 同事",
    "subordinate": "下属",
    "friend": "朋友 好友",
    "classmate": "同学",
    "roommate": "flatmate 室友",
    "neighbour": "neighbor 邻居",
    "teacher": "老师",
    "doctor": "医生",
    "client": "customer 客户",
    "landlord": "房东",
}
# Roles whose Chinese words are not synonyms, although English has one word: 叔叔 and 舅舅 are different people.
SEPARATE = {
    *("uncle", "aunt", "grandmother", "grandfather", "nephew", "niece", "grandson", "granddaughter"),
    *("mother-in-law", "father-in-law", "sister-in-law", "brother-in-law"),
}
# A question about a child is also about sons; a question about a son is not about daughters.
_INCLUDES = {
    "parent": ("mother", "father"),
    "partner": ("spouse", "significant other", "girlfriend", "boyfriend"),
    "spouse": ("wife", "husband"),
    "child": ("son", "daughter"),
    "sibling": ("brother", "sister"),
    "brother": ("older brother", "younger brother"),
    "sister": ("older sister", "younger sister"),
    "grandchild": ("grandson", "granddaughter"),
    "grandparent": ("grandmother", "grandfather"),
    "cousin": ("elder cousin (m)", "younger cousin (m)", "elder cousin (f)", "younger cousin (f)"),
}


def role_words(question: str) -> list[str]:
    """Returns other words for the roles in a question, which memories may use: "kid" → son, 儿子, …"""
    said = [term.removeprefix("我") if len(term) > 1 else term for term in terms(question)]
    named = [term for term in said if term in _role_terms()]
    alone = [term for term in named if not any(term in other for other in named if other != term)]  # not 朋友 in 女朋友
    words = [word for term in alone for word in _others(_role_terms()[term]) if not set(terms(word)) <= set(said)]
    return list(dict.fromkeys(words))


@cache
def _role_terms() -> dict[str, str]:
    """Returns the words for all roles by their search terms."""
    words = [word for role, others in ROLES.items() for word in (role, *others.split())]
    return {term: word for word in words for term in terms(word) if term == word or len(terms(word)) == 1}


def _others(word: str) -> Iterable[str]:
    role = next(role for role, others in ROLES.items() if word == role or word in others.split())
    yield from [role] if role in SEPARATE and not word.isascii() else _words(role)  # not 舅舅 for 叔叔
    for other in (*_within(role), *(wider for wider in ROLES if role in _within(wider))):
        yield from _words(other)


def _words(role: str) -> tuple[str, ...]:
    """Returns the single-word names of a role."""
    return tuple(word for word in (role, *ROLES[role].split()) if " " not in word)


def _within(role: str) -> Iterable[str]:
    for narrower in _INCLUDES.get(role, ()):
        yield narrower
        yield from _within(narrower)
