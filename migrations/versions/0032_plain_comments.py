"""Rewrites comments of tables and columns in plain words."""

from alembic import op

revision = "0032"
down_revision = "0031"

TABLES = {
    "api_key_uses": "Time of the last use of each API key, to the minute. No read model.",
    "durables": "Positions of the workers' durable consumers. A deleted consumer is recreated here. No read model.",
    "embedding_cache": "Vectors by model and hash of the text. No read model: a rebuild keeps them.",
    "embedding_rounds": "Texts and duration of each of the embedder's rounds in the last hour, to estimate when it will be done.",
    "event_ids": "First sequence of every event id in its thread. A later event with the same id is not applied.",
    "event_ids_of_any_thread": "Ids of events from before event_ids had threads. An event with such an id is a duplicate in every thread.",
    "forgotten_turns": "Turns from which a memory was forgotten. No entity contains their words.",
    "model_cache": "Answers of models that reactors called, kept until their event is stored: a repeated call is not sent.",
    "processes": "Processes that play roles. Each renews its row and deletes it at a clean end. No read model.",
    "projected_log": "The log from which the rows were made; one row.",
    "reactor_spending": "Calls and tokens of reactors in the last hour, for their spending limits.",
    "repeatable_writes": "Writes with an Idempotency-Key in the last two days, with their responses. No read model.",
    "user_keys": "Keys that encrypt users' personal data in the log. A copy of the stream TURNLOG_KEYS, no read model.",
}
COLUMNS = {
    "admissions": {
        "held_until": "end of the lease while the request runs; NULL: it has ended",
    },
    "agent_run_steps": {
        "name": "name of the tool, or of the agent that takes over",
        "text": "the plan, arguments, result, task or code of the error",
        "calls": "calls of a plan: [{id, name, arguments, after}]",
        "price_known": "whether the price was known; NULL if an older event does not say",
    },
    "agent_runs": {
        "run_id": "id of the event that requested the answer",
        "agent": "the agent to which the question was handed last",
        "code": "code of the error; NULL if there is none",
    },
    "api_key_uses": {
        "refreshes": "number of refreshes of the sign-in that the key stands for",
        "refreshed_at": "time of the last refresh",
    },
    "api_keys": {
        "seq": "sequence of the event that created the key",
        "digest": "HMAC of the key and its rights",
    },
    "checkpoint_lists": {
        "first": "index of the first of these items in the list",
        "base_list": "id of the list whose first items are also the first items of this list",
        "base_count": "number of items that are the same in both lists",
        "items": "JSON as it was received; it is always read as a whole",
    },
    "conversation_summaries": {
        "message_count": "number of messages that the summary covers",
        "covered_seq": "last sequence that the summary covers",
    },
    "dead_letters": {
        "reason": "poison: it cannot be applied; behind: it follows a poison event of its thread",
    },
    "durables": {
        "log": "id of the log that the position belongs to",
        "position": "all events up to this sequence were acknowledged",
    },
    "last_questions": {
        "seq": "sequence of the user's last turn with text",
        "chunk": "first chunk of that turn",
    },
    "memories": {
        "seq": "sequence of the event that recorded it",
        "terms": "search terms of the content, each as often as it occurs",
        "importance": "its value at importance_at; it decays from then on",
        "created_at": "time of the event that recorded it",
        "sources": "[{thread, seq, event_id, quote, said_at}], in the order of recording",
        "archived_reason": "the reason that a person gave for archiving it; NULL if the daily job archived it",
        "metadata": "a JSON object that the application chose",
        "thread_id": "the user's memory thread, or the thread of a trial derivation",
    },
    "memory_extractions": {
        "through_seq": "last sequence that was searched for memories",
    },
    "memory_tagged": {
        "through_seq": "last sequence that was searched for topics",
    },
    "memory_vectors": {
        "utc_offset": "seconds by which the speaker's clock is ahead of UTC; 0 if unknown",
        "seq": "sequence of the first turn that contains it",
        "index_text": "the text that is embedded",
        "terms": "search terms of the chunk, each as often as it occurs",
    },
    "messages": {
        "utc_offset": "seconds by which the speaker's clock is ahead of UTC; 0 if unknown",
        "origin": "source of the words: person, participant, tool, program or quoted",
    },
    "model_cache": {
        "user_id": "the user whose words the model read, so that an erasure finds the row",
    },
    "processes": {
        "started_at": "seconds since 1970, by the clock of the process's machine",
        "loops": "the loops that must keep running, each with its state at the last heartbeat",
    },
    "profile_texts": {
        "memories": "for each sentence, the ids of the memories that it states",
        "lines": "ids of the memories that the model read",
    },
    "projected_log": {
        "kept_through": "set when another log was adopted: rows of events up to here stay, although that log lacks them",
    },
    "projection_positions": {
        "stored_at": "when the log stored the event at the position; NULL: unknown",
    },
    "repeatable_writes": {
        "id": "made from the user, the route and the Idempotency-Key",
        "request": "HMAC of the body; for retries of a library, SHA-256 of the request",
        "answer": "encrypted response; for retries of a library, id and thread of the answer; NULL: running or not kept",
        "held_until": "end of the lease while the write runs",
    },
    "sessions": {
        "created_seq": "sequence of session_created; earlier turns are not part of the session",
        "rules": "threshold, recent turns and window, as in session_created",
        "checkpoint_id": "id of the event of the segment's checkpoint",
        "covered_seq": "last sequence that the summary covers",
        "recent_turns": "number of covered turns that the segment keeps in full",
        "seq": "sequence of the last event that changed the row",
    },
    "store_items": {
        "thread_id": "the thread of the log that stands for the namespace",
    },
    "thread_activity": {
        "metadata": "a JSON object that the application chose",
    },
    "thread_participants": {
        "name": "turns of the thread with this name are the user's",
        "agreed": "false: an invitation that the user has not accepted",
    },
    "usage": {
        "user_id": "'' if unknown",
        "agent": "'' if there is none",
        "unpriced_tokens": "tokens without a known price",
        "unsaid_tokens": "tokens of older events, which do not say whether their price was known",
    },
    "user_keys": {
        "kek_id": "id of the key-encryption key that encrypted it",
        "retired_at": "from then on, a newer key encrypts; this one still decrypts",
        "seq": "sequence of its newest copy on the stream TURNLOG_KEYS; NULL: not copied yet",
    },
}


def upgrade() -> None:
    for table, comment in TABLES.items():
        op.create_table_comment(table, comment)
    for table, comments in COLUMNS.items():
        for column, comment in comments.items():
            op.alter_column(table, column, comment=comment)
