"""Preferences that a user sets by hand: kept, cleared, exported, rebuilt; with names and values checked."""

import pytest
from helpers.servers import rows
from helpers.stage import player

from turnlog.agent.memory.preferences import InvalidPreference, set_preferences, show_preferences
from turnlog.events.contracts import UserPreferences
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.projection import MEMORIES
from turnlog.projectors.rebuild.verify import verify


async def test_a_preference_stays_until_it_is_set_again_or_cleared(
    nats_url: str, database_url: str, db: Connection
) -> None:
    async with player(nats_url, database_url, ("projectors",))() as stage:
        stage.runtime.own_preferences = lambda _: {"school_regions": "list", "essay_tone": "text"}
        place = (stage.runtime, "default", "ann")
        await set_preferences(*place, {"language": "zh", "school_regions": ["US", "UK"], "enable_memory": "no"})
        preferences = await set_preferences(*place, {"language": "en"}, ["enable_memory"])
        assert preferences == UserPreferences(language="en", school_regions=("US", "UK"))
        assert await show_preferences(stage.runtime, "default", "bob") == UserPreferences()
        nested = {
            "schoolPreferences": {"regions": "CA"},
            "essayPreferences": {"tone": "warm"},
            "responseLength": "brief",
        }
        preferences = await set_preferences(*place, nested)
        assert preferences == UserPreferences(
            language="en", school_regions=("CA",), essay_tone="warm", response_length="brief"
        )
        stage.runtime.own_preferences = lambda _: {}
        preferences = await set_preferences(*place, {"school_regions": "US"}, ["essay_tone"])
        assert preferences.model_extra == {"school_regions": ("US",)}, "a name that was set stays one without its team"
        assert await rows(db, "SELECT user_id FROM user_preferences") == [("ann",)]
        assert (await verify(stage.runtime.log, database_url, MEMORIES)).clean


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"colour": "blue"}, "there is no preference 'colour'; there are communication_style"),
        ({"response_length": "endless"}, "response_length: input should be 'brief', 'moderate' or 'detailed'"),
        ({"enable_memory": "perhaps"}, "enable_memory: input should be a valid boolean"),
    ],
)
async def test_an_unknown_name_or_value_is_refused(
    nats_url: str, database_url: str, values: dict[str, str], message: str
) -> None:
    async with player(nats_url, database_url, ("projectors",))() as stage:
        with pytest.raises(InvalidPreference, match=message.replace("'", ".")):
            await set_preferences(stage.runtime, "default", "ann", values)
