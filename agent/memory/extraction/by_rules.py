"""Applies extraction rules to turns. Input: turns. Output: findings with quotes, and rejections with reasons. Pure.

A match counts only if the user states it at the start of a clause (with `anywhere`, at any place), not in a question, a
condition, a quotation or reported speech. Precision is preferred to recall: a wrong memory does more harm than a
missing one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, TypeVar

import regex

from turnlog.agent.memory.deciding.policy import first_importance
from turnlog.agent.memory.extraction.evidence import MAX_SENTENCE, Statement, not_taken_back, statements
from turnlog.agent.memory.extraction.explicit import Request, kind_of, requests
from turnlog.agent.memory.extraction.fact_subjects import Subject, owner, role_name
from turnlog.agent.memory.extraction.findings import ExtractionResult, Finding, Rejection, Turn
from turnlog.agent.memory.extraction.normalisers import NORMALISERS
from turnlog.agent.memory.extraction.readings import Reading, readings
from turnlog.agent.memory.extraction.rules import Compiled, Pattern, Rule, RuleSet
from turnlog.agent.memory.extraction.validators import VALIDATORS
from turnlog.events.contracts import Entity
from turnlog.projectors.models.memories.text import normal
from turnlog.projectors.models.terms import terms

PATTERN_TIMEOUTS_S = (0.05, 0.5)  # for the first and second try; process time, which includes other threads
EXPLICIT_IMPORTANCE, EXPLICIT_CONFIDENCE = 0.95, 1.0

_AND = regex.compile(r",? and |[,，、和]\s*")
T = TypeVar("T", Finding, Finding | Rejection)
_CJK = regex.compile(r"[\u3400-\u9fff]")
_LATIN = regex.compile(r"[A-Za-z]")
# Matches after a value that was cut at its maximum length.
_IN_A_WORD = regex.compile(r"(?<=[a-z])[a-z]", regex.IGNORECASE)
_CLAUSE_START = regex.compile(
    r"[,，、;；:：()（）—–\-…*]|\b(?:and|but|so|because|since|although|though|while|plus|then)\b"
    r"|而且|但是|所以|因为|不过|并且|同时|但|而",
    regex.IGNORECASE,
)
_FILLERS = regex.compile(
    r"(?:\b(?:yes|yeah|yep|no|nope|oh|well|ok|okay|sure|hi|hey|hello|actually|honestly|personally|currently|now|recently"
    r"|right now"
    r"|lately|these days|also|btw|by the way|haha|hmm|um|i mean|for me|in fact|in general|of course|too|please|fyi"
    r"|just so you know"
    r"|(?:as )?(?:it )?turn(?:s|ed) out(?: that)?|apparently|it seems(?: that)?"
    r"|(?:(?:since|in|as of|this) )?(?:last )?(?:January|February|March|April|May|June|July|August|September|October"
    r"|November|December|\d{4}|week|month|year|spring|summer|autumn|fall|winter)"
    r"|first of all|first|as for me|i think|i guess|i believe|i'd say|i feel like|there"
    r"|friend|my friend|really|basically|always|usually|still|you know|note that|today|besides|again)\b"
    r"|原来|嗯+|恩|啊|哦|呃|其实|另外|还有|对了?|顺便|哈+|是的|是|当然啦?|当然|好的?|最近|现在|目前|平时|平常|一直以来|说实话|老实说|总的来说|比如|确实|当时"
    r"|今天|今年|我觉得|我想|我认为|你好|您好|嗨|朋友|那|也|就|说起来|话说回来|实际上|事实上|一般来说|通常|除此之外|此外|不用谢|谢谢|请|[\s\W\d_])*",
    regex.IGNORECASE,
)
_CONDITION = regex.compile(
    r"\b(?:if|unless|suppose|imagine|pretend|wish|would have|in case|whether|as if|as though)\b"
    r"|\bin (?:my|the|this|a) (?:novel|story|game|book|dream|movie|film|play|campaign)\b"
    r"|(?:小说|故事|游戏|梦|剧本?|电影|书)(?:里|中)"
    r"|\b(?:for (?:example|instance)|let's (?:say|play|pretend)|role-?play)\b"
    r"|比如|例如|举例|举个例子|角色扮演|你扮演|你来演"
    r"|如果|假如|要是|假设|倘若|万一|假装|除非|要不是|(?:我|他|她)?(?:好像|似乎)是?(?=我)",
    regex.IGNORECASE,
)
_REPORTS = regex.compile(
    r"\b(?:he|she|they|mom|mum|dad|mother|father|boss|teacher|friend|someone|somebody|everyone|people|(?-i:\p{Lu})\w+)\s+"
    r"(?:says?|said|tells?|told|asks?|asked|thinks?|thought|wrote|writes|claims?|claimed|replied|answered|joked)\b"
    r"|(?:他|她|他们|她们|妈妈?|爸爸?|老师|老板|朋友|别人|有人|同事|同学|医生)[^，。,]{0,4}(?:说|问|告诉|觉得|认为|以为|写道|回答)(?!话)"
    r"|写的是|写着|[来冒]了句",
    regex.IGNORECASE,
)


class Span(NamedTuple):
    """The positions of a match and of its value in a statement's text. value_end may be before the end of the match.
    left: text that was matched as part of the value but removed from it by normalisation."""

    start: int
    value_start: int
    value_end: int
    end: int
    left: str = ""

    def shares_a_value_with(self, other: "Span") -> bool:
        return self.value_start < other.value_end and other.value_start < self.value_end


_NOWHERE = Span(0, 0, 0, 0)
_LABELLED = regex.compile(r":|^(?:Has|Is|Takes) ")


@dataclass(slots=True)
class Extractor:
    """Applies a set of rules. slow: ids of rules that exceeded the timeout; this extractor does not use them again."""

    rules: RuleSet
    slow: set[str] = field(default_factory=set)

    def extract(self, turns: Iterable[Turn]) -> ExtractionResult:
        """Returns the findings and rejections of the turns. Each turn is read independently, but findings from a turn
        that the next one takes back are dropped."""
        turns = list(turns)
        findings: list[Finding] = []
        rejections: list[Rejection] = []
        for turn in turns:
            for outcome in self._turn(turn):
                if isinstance(outcome, Finding):
                    findings.append(outcome)
                else:
                    rejections.append(outcome)
        return not_taken_back(ExtractionResult(tuple(findings), tuple(rejections)), turns)

    def only_finding(self, turn: Turn) -> Finding | None:
        """Returns the single finding that covers the whole text; None if the text contains anything else, or if no rule
        matches."""
        findings, says_more = self._read(turn, turn.text)
        return findings[0] if len(findings) == 1 and not says_more else None

    def _read(self, turn: Turn, text: str) -> tuple[list[Finding], bool]:
        """Returns the findings in a text, and whether the text contains anything else."""
        findings: list[Finding] = []
        rest = text
        for statement in statements(text):
            left = list(statement.text)
            for outcome, span in self._matches(turn, statement):
                if isinstance(outcome, Finding):
                    findings.append(outcome)
                    left[span.start : span.end] = [" "] * (span.end - span.start)
                    left.append(f" {span.left}")
            if len(left) > len(statement.text):
                rest = rest.replace(statement.sentence, "".join(left), 1)
        return list(_without_bare_names(findings)), bool(terms(rest))

    def _turn(self, turn: Turn) -> Iterator[Finding | Rejection]:
        asked = [] if turn.is_tool or turn.to_people else requests(turn.text)
        for request in asked:
            yield from self._explicit(turn, request)
        accepted = [request for request in asked if request.refused is None]
        for statement in statements(turn.text):
            end = statement.start + len(statement.sentence)
            if not any(request.start < end and statement.start < request.end for request in accepted):
                yield from _without_bare_names([outcome for outcome, _ in self._matches(turn, statement)])

    def _explicit(self, turn: Turn, request: Request) -> Iterator[Finding | Rejection]:
        quote = turn.text[request.start : request.end].strip()
        if request.refused:
            yield Rejection(request.refused, None, turn, quote, "no request to remember something")
            return
        findings, says_more = self._read(turn, request.content)
        whole = len(findings) == 1 and not says_more
        for finding in findings:
            content = request.content if whole else finding.content
            importance = max(finding.importance, EXPLICIT_IMPORTANCE)
            yield replace(
                finding,
                content=content,
                importance=importance,
                confidence=EXPLICIT_CONFIDENCE,
                origin="explicit",
                source=turn.source(quote),
            )
        if says_more or not findings:
            yield _verbatim(turn, request.content, quote)

    def _matches(self, turn: Turn, statement: Statement) -> Iterator[tuple[Finding | Rejection, Span]]:
        """Yields findings and rejections with their spans. If values overlap, only the value of the first rule is
        used."""
        languages = {"zh"} if _CJK.search(statement.text) else set()
        languages |= {"en"} if _LATIN.search(statement.text) else set()
        taken: list[Span] = []
        refused: set[tuple[str, str]] = set()
        ways = list(readings(statement.text))
        for rule in self.rules.rules:
            for (language, pattern), reading in product(rule.patterns, ways):
                if language not in languages or rule.id in self.slow or not _applies(rule, language, reading):
                    continue
                for outcome, span in self._of_pattern(turn, statement, reading, rule, language, pattern):
                    if any(span.shares_a_value_with(other) for other in taken):
                        continue
                    if isinstance(outcome, Finding):
                        taken.append(span)
                    elif (rule.id, outcome.reason) in refused:
                        continue
                    else:
                        refused.add((rule.id, outcome.reason))
                    yield outcome, span

    def _of_pattern(
        self, turn: Turn, statement: Statement, reading: Reading, rule: Compiled, language: str, pattern: Pattern
    ) -> Iterator[tuple[Finding | Rejection, Span]]:
        try:
            matches, excluded = _found(rule, pattern, reading.text)
        except TimeoutError:
            self.slow.add(rule.id)
            yield Rejection("slow-pattern", rule.id, turn, statement.sentence, "a pattern took too long"), _NOWHERE
            return
        if excluded:
            yield Rejection("excluded", rule.id, turn, statement.sentence), _NOWHERE
            return
        for match in matches:
            if reading.states_at(match.start()):
                yield _checked_match(turn, statement, reading, rule, language, match)


def _found(rule: Compiled, pattern: Pattern, text: str) -> tuple[list[Any], bool]:
    """Returns the matches, and whether an `unless` pattern excludes them. Raises TimeoutError."""
    first, patient = PATTERN_TIMEOUTS_S
    try:
        return _found_within(rule, pattern, text, first)
    except TimeoutError:
        return _found_within(rule, pattern, text, patient)


def _found_within(rule: Compiled, pattern: Pattern, text: str, timeout_s: float) -> tuple[list[Any], bool]:
    matches = list(pattern.finditer(text, overlapped=True, timeout=timeout_s))
    return matches, bool(matches) and any(unless.search(text, timeout=timeout_s) for unless in rule.unless)


def _checked_match(
    turn: Turn, statement: Statement, reading: Reading, rule: Compiled, language: str, match: Any
) -> tuple[Finding | Rejection, Span]:
    subject = reading.subject
    if subject is None and rule.rule.type == "FACT" and "who" not in match.re.groupindex:
        subject = owner(reading.text[: match.start()], match[0])
    if reason := _not_stated(statement, reading, rule, match, subject):
        return Rejection(reason, rule.id, turn, statement.sentence), _span(match)
    groups = {name: regex.sub(r"\s+", " ", text or "") for name, text in match.groupdict().items()}
    groups.setdefault("value", match[1] or "")
    group = "value" if "value" in match.re.groupindex else 1
    raw, raw_at = match[group] or "", match.start(group)
    try:
        for step in rule.normalisers:
            if step.group == "key":
                groups.setdefault("key", groups["value"])
            groups[step.group] = NORMALISERS[step.name](groups[step.group], turn.said_at, **step.options)
    except (ValueError, OverflowError) as error:
        return Rejection("invalid-value", rule.id, turn, statement.sentence, str(error)), _span(match)
    groups.setdefault("key", groups["value"])
    for step in rule.validators:
        if problem := VALIDATORS[step.name](groups[step.group], **step.options):
            return Rejection("invalid-value", rule.id, turn, statement.sentence, f"{step.name}: {problem}"), _span(
                match
            )
    if not groups["value"]:
        return Rejection("invalid-value", rule.id, turn, statement.sentence, "empty"), _span(match)
    if _is_cut(statement.text, match.end(group)) and raw.endswith(groups["value"][-5:]):
        return Rejection("cut-off", rule.id, turn, statement.sentence), _span(match)
    value_end = max(raw_at + len(groups["value"]), match.start() + 1)
    before, said, behind = raw.partition(groups["value"])  # a normalised form, such as a date's, may not be in the text
    left = f"{before} {behind}" if said else ""
    begin = reading.begin(statement.text, match.start())
    if subject is not None and reading.subject is None:  # the match begins after the owner, as in "my wife's email"
        begin = subject.start
    span = Span(begin, raw_at, min(value_end, match.end()), match.end(), left)
    finding = _finding(turn, statement, rule, language, groups)
    if reading.denies:
        finding = _denied(finding, reading, language)
    return (_of_somebody(finding, subject) if subject else finding), span


def _span(match: Any) -> Span:
    return Span(match.start(), match.start(), match.end(), match.end())


def _finding(turn: Turn, statement: Statement, rule: Compiled, language: str, groups: dict[str, str]) -> Finding:
    said = rule.rule
    content = " ".join(rule.content_in(language).format_map(groups).split())
    folded = {name: normal(text) for name, text in groups.items()}
    return Finding(
        kind=said.type,
        content=content,
        category=said.category,
        value=(said.value or "{value}").format_map(groups),
        importance=first_importance(said.type, content, said.importance),
        confidence=said.confidence,
        origin="rule",
        rule=rule.id,
        dedupe_key=said.dedupe_key.format_map(folded)[:200] if said.dedupe_key else None,
        strategy=said.strategy,
        source=turn.source(statement.sentence),
        ttl_days=said.ttl_days,
        entities=_entities(turn, statement, said.entity, groups),
    )


def _denied(finding: Finding, reading: Reading, language: str) -> Finding:
    """Returns the finding for a denial of the claim. It ends only a memory with the same value."""
    ended, content = reading.denies == "ended", finding.content
    if language == "zh":
        said = f"{'不再' if ended else '并不'}{'：' if '：' in content or '是' in content else ''}{content}"
    elif _LABELLED.search(content):
        said = f"{'No longer' if ended else 'Not'}: {content}"
    else:
        said = f"{'No longer' if ended else 'Not'} {content[:1].lower()}{content[1:]}"
    return replace(finding, content=said, value=f"(not {finding.value})", entities=())


def _of_somebody(finding: Finding, subject: Subject) -> Finding:
    """Returns the finding as a fact about another person: it becomes an attribute of the person's entity, with a
    separate dedupe key."""
    attributes = {finding.rule or finding.category: finding.value}
    relation = {"relation": subject.relation} if subject.relation else {}
    entity = Entity(type="PERSON", name=subject.name, attributes={**relation, **attributes}, sources=(finding.source,))
    return replace(
        finding,
        content=subject.of(finding.content),
        dedupe_key=subject.key_of(finding.dedupe_key, finding.value)[:200] if finding.dedupe_key else None,
        entities=(entity, *finding.entities),
    )


def _without_bare_names(outcomes: list[T]) -> Iterator[T]:
    """Drops findings that only repeat a name: "wife is called Ann" adds nothing to "wife Ann works as nurse"."""
    told = {
        outcome.entities[0].name
        for outcome in outcomes
        if isinstance(outcome, Finding) and outcome.entities and (outcome.dedupe_key or "").startswith("of:")
    }
    return (outcome for outcome in outcomes if not (isinstance(outcome, Finding) and outcome.value in told))


def _entities(turn: Turn, statement: Statement, kind: str | None, groups: dict[str, str]) -> tuple[Entity, ...]:
    """Returns the entities of a finding. Their names are in the group `called`, or else in the value; the group may
    name several people or animals."""
    named = groups.get("called", groups["value"])
    names = _AND.split(named) if kind in ("PERSON", "ANIMAL") else [named]
    attributes = {"relation": role_name(groups["who"], len(names) == 1)} if groups.get("who") else {}
    source = turn.source(statement.sentence)
    return tuple(
        Entity(type=kind, name=name, attributes=attributes, sources=(source,)) for name in names if kind and name
    )


def _verbatim(turn: Turn, content: str, quote: str) -> Finding:
    kind = kind_of(content)
    return Finding(
        kind=kind,
        content=content,
        category="explicit",
        value=None,
        importance=first_importance(kind, content, EXPLICIT_IMPORTANCE),
        confidence=EXPLICIT_CONFIDENCE,
        origin="explicit",
        rule=None,
        dedupe_key=None,
        strategy="KEEP_LATEST",
        source=turn.source(quote),
    )


def _is_cut(text: str, end: int) -> bool:
    """Returns whether a value that ends at `end` was cut at the maximum length of its rule or of a sentence."""
    return end == len(text) >= MAX_SENTENCE or bool(_IN_A_WORD.match(text, end))


def _applies(rule: Compiled, language: str, reading: Reading) -> bool:
    """Returns whether a rule applies to this reading. A rule with `anywhere` applies only to the complete statement,
    which contains all clauses. A rule with `of_relatives` also applies to clauses. All other rules apply to clauses
    only if they are Chinese and about the user, because an English clause without a subject is often no clause (", like
    tea" lists examples)."""
    if reading.denies and not _may_be_denied(rule.rule, reading):
        return False
    if reading.is_whole or rule.rule.anywhere:
        return reading.is_whole
    return rule.rule.of_relatives or (reading.subject is None and language == "zh")


def _may_be_denied(rule: Rule, reading: Reading) -> bool:
    """Returns whether a denial of the rule's claim is meaningful. A plain "not" is meaningful only for illnesses and
    allergies."""
    is_denial = (rule.value or "").startswith("(")
    settles = rule.dedupe_key is not None and rule.strategy in ("KEEP_LATEST", "KEEP_BOTH")
    return settles and not is_denial and (reading.denies == "ended" or rule.category == "health")


def _not_stated(
    statement: Statement, reading: Reading, rule: Compiled, match: Any, subject: Subject | None
) -> str | None:
    text, at = statement.text, match.start()
    if statement.is_question:
        return "question"
    if statement.is_quoted(at):
        return "quoted"
    if _CONDITION.search(text[:at]):
        return "hypothetical"
    if _REPORTS.search(text[:at]):
        return "reported"
    if subject is not None and reading.subject is None:
        return None if subject.is_known and _starts_clause(text[: subject.start]) else "unknown-subject"
    return None if rule.rule.anywhere or _starts_clause(reading.text[:at]) else "inside-a-clause"


def _starts_clause(before: str) -> bool:
    marks = [mark.end() for mark in _CLAUSE_START.finditer(before)]
    return bool(_FILLERS.fullmatch(before[marks[-1] if marks else 0 :]))
