"""The read model `profile_texts` has the newest text about each user."""

from uuid import UUID

from helpers.memory_events import event
from helpers.projection_spec import Spec, seq
from helpers.sample_events import DERIVED

from turnlog.events.contracts import Erased, Event, MemoryForgotten, ProfileWritten
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.profile_texts import PROFILE_TEXTS

TEA, CELLO = UUID(int=1), UUID(int=2)
ROWS = "SELECT user_id, sentences, memories, seq FROM profile_texts ORDER BY 1"


def written(text: str, cited: UUID = TEA, user: str = "ann") -> Event:
    data = ProfileWritten(sentences=(text,), memories=((cited,),), lines=(TEA, CELLO), derivation=DERIVED)
    return event(data, user)


async def test_a_new_text_replaces_the_old_one(db: Connection) -> None:
    spec = Spec(db, PROFILE_TEXTS).given(written("They like tea."), written("They like milk.", user="bob"))
    await spec.when(written("They play the cello.", CELLO)).then(
        ROWS,
        [
            ("ann", ["They play the cello."], [[str(CELLO)]], seq(3)),
            ("bob", ["They like milk."], [[str(TEA)]], seq(2)),
        ],
    )


async def test_a_text_is_deleted_with_any_memory_that_the_model_read_and_with_its_user(db: Connection) -> None:
    spec = Spec(db, PROFILE_TEXTS).given(written("They like tea."), written("They like milk.", user="bob"))
    kept = [("bob", ["They like milk."], [[str(TEA)]], seq(2))]
    await spec.when(event(MemoryForgotten(memory_id=UUID(int=3)))).then("SELECT count(*) FROM profile_texts", [(2,)])
    await spec.when(event(MemoryForgotten(memory_id=CELLO))).then(ROWS, kept)
    await spec.when(event(Erased())).then(ROWS, kept)
