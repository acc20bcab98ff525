"""Defines the sections of docs/benchmarks.md, each with its benchmarks and a description of the method."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A section. names: the names of its benchmarks in catalogue.py. method: a paragraph of Markdown above the
    table."""

    title: str
    names: tuple[str, ...]
    method: str


SECTIONS = (
    Section(
        "Log and projection",
        ("append", "project", "rebuild", "memory", "visible"),
        "50,000 events, real IRC messages. Appending: from Event objects to the last acknowledgement, beside nats-py "
        "with ready bytes in atomic batches of 1,000. Projection: both projections in one runner until they are at "
        "the head, beside a pull consumer that decodes nothing. Rebuild of messages: from the call to the switched "
        "tables, beside the slower of that read and one COPY of the rows. Memory: growth of a process that rebuilds "
        "200,000 events, beside 20,000. Append → visible: 1,200 turns at 100 a second, beside one publish and one "
        "insert.",
    ),
    Section(
        "Long threads",
        ("lengths",),
        "What an event costs all projections together, in threads of one shape each: the median of 15 batches of 100 "
        "events after 10,000 and after 100,000 events, beside that after 1,000. The ratio is the last to the first. "
        "The same is counted in rows, index entries, pages and bytes of the write-ahead log by "
        "`tests/integration/test_projection_cost.py`.",
    ),
    Section(
        "Embedding backlog",
        ("embedding",),
        "One process with projectors, agent and embedder (offline models, one core at low priority) and a backlog of "
        "20,000 IRC messages. Floor: the same process while the embedder rests. Answers: p95 of 20 questions in one "
        "thread. Import: 5,000 messages, from Event objects until every read model has them.",
    ),
    Section(
        "Context",
        ("context",),
        "p50 of 20 calls for 400 messages of 300 characters, SQL included, in a process that knows the thread, beside "
        "`aget_state` of LangGraph's AsyncPostgresSaver. The floor of the two rows without SQL is tiktoken on the same "
        "texts. An exchange: two turns appended and visible, beside `aupdate_state`.",
    ),
    Section(
        "Recall",
        ("recall", "scale"),
        "p50 / p95 of 40 or 60 questions, the best 5 or 10 turns, without the query's embedding (random vectors of 384 "
        "dimensions). Floors: `ts_rank` over the scope; for 2,000 chunks and more, one row by its primary key. The "
        "last row compares the path for large scopes with ranking every chunk of five LoCoMo conversations.",
    ),
    Section(
        "Tokens and evidence",
        ("evidence",),
        "Tokens: means over 5 LoCoMo conversations of the first 50 requests together and of the last, as a share of "
        "sending everything, with the relevant episodes first. Evidence: share of the turns that answer one of 997 "
        "questions asked after the whole conversation, in the newest turns that fit into the window, in the tiers, "
        "and in the tiers with the 10 most relevant episodes first (the default, `MEMORY_HYBRID_EPISODES`). Recall by "
        "words alone; no language model.",
    ),
    Section(
        "Sessions",
        ("sessions",),
        "p50 / p99 of 400 reads of a session of 30 turns. The floor is the bound that p50 must keep.",
    ),
    Section(
        "LangGraph",
        ("langgraph",),
        "`ainvoke` of a graph with one node that answers at once: median of the last 10 of 200 turns of two messages; "
        "the sides take turns, and `turnlog worker projectors` runs beside. State: p50 of 20 `aget_state` of 400 "
        "messages. Bytes: `pg_total_relation_size` per thread after VACUUM FULL. Floor: AsyncPostgresSaver.",
    ),
    Section(
        "Memories",
        ("memories", "memory-recall", "memory-jobs"),
        "100,000 memories of one user. Remembering: without embedding, beside one raw append and one look-up by an "
        "index. Recall: p50 / p95 of 60 questions, beside one row by its primary key. Jobs: seconds of the whole job "
        "and growth of its process, beside a tenth of the memories.",
    ),
    Section(
        "Beside mem0",
        ("mem0",),
        "2,000 IRC messages of one person, added one after the other, then 60 searches for the best 5: p50 / p95 and "
        "calls a second. Ours: `turnlog.open()` with its projectors, reactors and agent, on servers that run; an "
        "`add` is on the disk of the log when it returns, and is embedded later. Theirs: mem0's own embedded store "
        "(Qdrant and SQLite in files), `infer=False`, no telemetry, embedded within the call. Both ask the same "
        "server for vectors (random ones, 384 dimensions, at once). Backlog: 30,000 more messages wait for our "
        "embedder, which works in the same process; the ratio of these rows is that of our p95 to its aim, 6 ms for "
        "an `add` and 20 ms for a search.",
    ),
    Section(
        "Answers",
        ("answers",),
        "One process with projectors and agent, and a model server that answers at once in another. Each thread has "
        "100 turns of four IRC messages, its user 20 memories, and the window has room for half, so that every answer "
        "recalls episodes and memories with vectors. In the floor's brackets: the least that an answer needs, two "
        "appends and the same request to the model by a bare HTTP client.",
    ),
    Section(
        "Agents",
        ("runs",),
        "A run of an agent: the model plans three calls, the tools answer at once, the model answers from the results; "
        "p50 / p95 from the question to the end of the answer, one run after the other, each in a new thread, with "
        "projectors and agent in the process. The model server answers at once, in another process. Floor: a LangGraph "
        "graph of three nodes (plan, tools, solve) on AsyncPostgresSaver, which asks the same server by a bare HTTP "
        "client; the sides take turns. The last row is our p95 to its aim.",
    ),
    Section(
        "HTTP server",
        ("server", "load"),
        "One process with projectors, agent and API beside a process with a bare FastAPI route that does one SELECT. "
        "Appends: 8 connections, each request after the one before. Reads: p95 at 50 requests a second, from the "
        "moment each was due. Questions: server-sent events for as many users at once, from the request to the end of "
        "the stream, less the 2 s that the model takes. CPU is the server's own, per request. Open connections: ten "
        "rounds in which each stream gets a turn of its thread, each WebSocket an answer; p95 from the moment a round "
        "begins, memory of the whole process.",
    ),
    Section(
        "Hooks and tests",
        ("tools",),
        "60 times each, one after the other: the program that a coding agent runs for a prompt, beside the server that "
        "it sends the turn to, and the memory that pytest's fixture opens for a test.",
    ),
)
