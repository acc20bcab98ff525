"""python -m tests.evaluation.routing: measures the fast router on 200 labelled questions.

Writes the section "Routing" of docs/evaluation.md. The labels name the agent that should answer; half of the questions
contain words of another agent, or no words of the right one.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnlog.agent.team.router import Routing, Rule, route
from turnlog.agent.team.teams import bundled_team

from .document import DOCUMENT, put_section

QUESTIONS = Path(__file__).with_name("questions.tsv")
KINDS = ("plain", "misleading")


@dataclass(frozen=True, slots=True)
class Labelled:
    """A labelled question. agent: the agent that should answer. kind: one of KINDS."""

    agent: str
    kind: str
    language: str
    question: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Counts of questions. direct: sent to an agent without a model. right: sent to the labelled agent. of_specialists:
    questions that a specialist should answer. first: questions whose best rule names the labelled agent, even below the
    threshold, and questions for the entry agent that no rule matches."""

    questions: int
    direct: int
    right: int
    of_specialists: int
    first: int


def labelled_questions() -> list[Labelled]:
    with QUESTIONS.open(encoding="utf-8", newline="") as file:
        return [Labelled(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def accuracy(questions: Sequence[Labelled], rules: Sequence[Rule], entry: str) -> Accuracy:
    """Routes the questions by the rules and returns the counts."""
    decided: list[tuple[Labelled, Routing]] = [(asked, route(asked.question, rules)) for asked in questions]
    direct = [(asked, routing) for asked, routing in decided if not routing.should_use_llm]
    return Accuracy(
        len(questions),
        len(direct),
        sum(routing.agent == asked.agent for asked, routing in direct),
        sum(asked.agent != entry for asked in questions),
        sum((routing.agent or entry) == asked.agent for asked, routing in decided),
    )


def section() -> str:
    """Returns the text of the section, which is the same in each run."""
    team, questions = bundled_team(), labelled_questions()
    groups = {f"{kind}, {language}": (kind, language) for kind in KINDS for language in ("zh", "en")}
    lines = [
        "| questions | | direct | of these right | specialist reached without a model | wrong specialist | best rule |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, group in {**groups, "**all**": None}.items():
        chosen = [asked for asked in questions if group in (None, (asked.kind, asked.language))]
        result = accuracy(chosen, team.rules, team.entry)
        shares = (
            (result.right, result.direct),
            (result.right, result.of_specialists),
            (result.direct - result.right, result.questions),
            (result.first, result.questions),
        )
        percents = " | ".join(_percent(*share) for share in shares)
        lines.append(f"| {name} | {result.questions} | {result.direct} | {percents} |")
    return f"""
The fast router (`agent/team/router.py`) with the rules of the bundled team, on {len(questions)} questions of applicants
(`tests/evaluation/questions.tsv`, `python -m tests.evaluation.routing`). Each question is labelled with the agent that
should answer it. Half are written to mislead: they use the words of another agent, or none of their own. The labels
were written first, and no rule was changed after the first measurement. Percent.

"Direct" are questions that go to a specialist without a call of a model; all others go to the orchestrator, whose
model decides. "Best rule": the rule of the highest confidence, sure or not, is the labelled agent's, or none matches
and the orchestrator should answer.

{chr(10).join(lines)}

The router is careful rather than clever: a rule needs a pattern and two keywords, or four keywords, before it is sure.
"""


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "–"


if __name__ == "__main__":
    put_section(DOCUMENT, "Routing", section())
    print(section())
