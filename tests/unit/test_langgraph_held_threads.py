"""A saver keeps a bounded number of threads in memory."""

import gc
from weakref import ref

from turnlog.consumers.langgraph.checkpoint.held_threads import Threads


def test_recently_used_threads_and_those_in_use_are_kept() -> None:
    threads = Threads("acme", 2)
    in_use, unused = threads.get("in use"), ref(threads.get("unused"))
    recent = [ref(threads.get(name)) for name in ("one", "two")]
    gc.collect()
    assert unused() is None
    assert [reference() for reference in recent] == [threads.get("one"), threads.get("two")]
    assert threads.get("in use") is in_use


def test_cached_words_are_dropped_except_in_threads_being_written() -> None:
    threads = Threads("acme", 1)
    written, idle = threads.get("written"), threads.get("idle")
    for held in (written, idle):
        held.begin({"checkpoint_saved": 1})
    written.waiting = 1
    threads.forget_all()
    assert written.counts == {"checkpoint_saved": 1}
    assert idle.counts is None
