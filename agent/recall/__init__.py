"""Recall: which turns of the past answer this question? (C9, A 4.4, D 2.2)

1. The projector of P5 cuts every turn into chunks (projectors/chunking.py) and into search terms
   (projectors/terms.py: stemmed English, segmented Chinese); the embedder adds vectors when it gets to it.
2. The scope is one thread or all threads of a user. A small one is loaded whole as a `ScopeIndex` (scope.py),
   immutable: keep it as long as the scope stays the same. Of a large one (large.py) indexes give the likely chunks
   with their neighbours, and a sample says how frequent words are and where vectors lie.
3. `rank` (ranking.py) adds these parts for every chunk that was loaded:
   bm25      BM25 over the query's terms; the chunk's date counts as its words, speakers' names do not
   dense     likeness to the query's vector as a z-score within the scope (space.py; 0 where there is no vector yet)
   context   a share of what the turns just before and after score, most of the question that a turn answers: the
             question names the subject and the answer does not ("Where was it taken?" "Banff.")
   speaker   a bonus when the query names the chunk's speaker
   question  a minus for turns that ask: they name the subject and do not know the answer
   opens     a bonus for the first turn after a pause: it tells what is new
   detail    a bonus for a number, a name or a quotation
   feedback  likeness to the two best so far: what answers a part of the question leads to the rest of the answer
   again     a minus for every better turn of the same session, when the query asks for several things
4. No query vector, or none in the scope: dense and feedback are 0 and recall is keyword search with the same code.
5. `relevant_episodes` (episodes.py) gives the questions with their answers that the best turns belong to, and
   `hybrid_history` (hybrid.py) puts them before the newest turns.
The parts add up to the score, so `recall --explain` prints them as they are. Weights, measured: ranking.py.
"""

from turnlog.agent.recall.ranking import Query, Scored, Weights, rank
from turnlog.agent.recall.scope import ScopeIndex
from turnlog.agent.recall.space import VectorMismatch

__all__ = ["Query", "ScopeIndex", "Scored", "VectorMismatch", "Weights", "rank"]
