"""Redaction by `thread.redact` works the same in the process and over HTTP."""

import pytest
from helpers.client import Face
from helpers.client import face as face
from helpers.client import given as given
from helpers.client import model as model

from turnlog._remote import RemoteMemory
from turnlog.agent.access.identity import Forbidden
from turnlog.agent.privacy.redaction.striking import InvalidWords
from turnlog.events.errors import NotFound


async def test_an_owner_sees_where_words_of_a_turn_occur_before_they_are_redacted(face: Face) -> None:
    async with face() as memory, face("bob") as bobs:
        thread = memory.thread("t", user="ann")
        seq = (await thread.add("user", "My locker opens with Zebrafish-77.")).seq
        await thread.add("assistant", "Zebrafish-77, noted.")
        preview = await thread.preview_redaction(seq, "zebrafish-77")
        assert (preview.thread, preview.seq, preview.events["turn_recorded"]) == ("t", seq, 2)
        assert (await thread.preview_redaction(seq, whole=True)).events["turn_recorded"] >= 1
        for words, whole in ((None, False), ("Zebrafish-77", True), ("!", False)):
            with pytest.raises(InvalidWords):
                await thread.preview_redaction(seq, words, whole=whole)
        with pytest.raises(NotFound):
            await thread.preview_redaction(seq, "Zebrafish-78")
        with pytest.raises(NotFound):
            await bobs.thread("t", user="bob").redact(seq, whole=True)
        await thread.share("bob")
        await bobs.thread("t", user="bob").join()
        with pytest.raises(Forbidden, match="owner"):
            await bobs.thread("t", user="bob").redact(seq, whole=True)
        await bobs.thread("t", user="bob").add("user", "Mine opens with Zebrafish-77 too.")
        with pytest.raises(Forbidden, match="others speak"):
            await thread.redact(seq, "Zebrafish-77")
        assert "Zebrafish-77" in str((await thread.messages())[0].content)


@pytest.mark.nightly
async def test_words_of_a_turn_are_redacted_with_a_receipt(face: Face) -> None:
    async with face() as memory, face("bob") as bobs:
        await bobs.thread("other", user="bob").add("user", "Zebrafish-77 is a fish.")
        thread = memory.thread("t", user="ann")
        seq = (await thread.add("user", "My locker opens with Zebrafish-77.")).seq
        receipt = await thread.redact(seq, "Zebrafish-77", reason="a secret")
        data = receipt.data
        assert (data.by, data.reason, data.seq, data.whole) == ("ann", "a secret", seq, False) and data.events
        assert not any("threads" in location for location in receipt.hits)
        if isinstance(memory, RemoteMemory):  # a user does not see other people's words
            assert (receipt.hits, receipt.strings, data.hits, data.found_in) == ({}, {}, 0, None)
        assert [message.content for message in await thread.messages()] == ["My locker opens with [redacted]."]
        assert [message.content for message in await bobs.thread("other", user="bob").messages()] == [
            "Zebrafish-77 is a fish."
        ]
