"""Each contract must declare what its event type means to erasure, sealing and the engine."""

from typing import Any, ClassVar, Literal
from uuid import uuid4

import pytest

from turnlog.events.contracts import (
    ARCHIVING,
    CONTRACTS,
    REMOVALS,
    AnswerReceipt,
    EventContract,
    ReceiptTier,
    TurnSpans,
)


def test_a_contract_with_personal_fields_declares_whose_words_they_are() -> None:
    with pytest.raises(TypeError, match="MIXES_SPEAKERS"):

        class Forgotten(EventContract):
            VERSION: ClassVar[int] = 1
            PERSONAL: ClassVar[dict[str, Any]] = {"text": "[erased]"}
            type: Literal["forgotten"] = "forgotten"
            text: str


def test_a_contract_with_an_error_text_declares_it() -> None:
    with pytest.raises(TypeError, match="QUOTES_ERRORS"):

        class Failed(EventContract):
            VERSION: ClassVar[int] = 1
            PERSONAL: ClassVar[dict[str, Any]] = {}
            type: Literal["failed"] = "failed"
            error: str | None = None


def test_events_that_mix_words_of_several_speakers_are_overwritten_in_shared_threads() -> None:
    assert {name for name, contract in CONTRACTS.items() if contract.PERSONAL and contract.MIXES_SPEAKERS} == {
        "answer_receipt",
        "checkpoint_saved",
        "checkpoint_writes_saved",
        "run_delegated",
        "run_planned",
        "run_solved",
        "run_tool_answered",
        "run_tool_called",
        "segment_checkpointed",
        "session_updated",
        "summary_written",
        "topics_tagged",
    }


def test_removing_archiving_and_conversing_contracts_are_classified_as_the_engine_expects() -> None:
    assert {"thread_deleted", "erased"} == REMOVALS
    assert {"thread_archived", "thread_restored"} == ARCHIVING
    assert not {name for name, contract in CONTRACTS.items() if contract.CONVERSES and contract.REMOVES}


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=lambda contract: contract.__name__)
def test_only_personal_fields_are_left_out_of_the_search(contract: type[EventContract]) -> None:
    assert set(contract.PERSONAL) >= contract.UNSEARCHED


def test_a_receipt_of_numbers_alone_is_personal_but_has_no_words() -> None:
    def receipt(**changes: Any) -> AnswerReceipt:
        ids: dict[str, Any] = {"request_id": uuid4(), "turn_id": uuid4(), "answer_ids": (uuid4(),), "context_hash": "h"}
        return AnswerReceipt(**ids, as_of_seq=4, model="m", window=8_000, budget=4_000, **changes)

    tier = ReceiptTier(tier="1", tokens=10, turns=TurnSpans(count=2, spans=((1, 2),)))
    numbers = receipt(tiers=(tier,))
    assert numbers.has_personal()
    assert not numbers.has_words()
    assert receipt(tiers=(tier.model_copy(update={"topics": ("hiking",)}),)).has_words()
    assert receipt(tiers=(tier,), notes=("[DOCUMENTS] …",)).has_words()
