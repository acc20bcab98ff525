"""Recall: which turns of the past answer this question? (C9, A 4.4, D 2.2)

1. The projector of P5 cuts every turn into chunks (projectors/chunking.py) and into search terms
   (projectors/terms.py: stemmed English, segmented Chinese); the embedder adds vectors when it gets to it.
2. The caller loads the chunks of the scope, one thread or all threads of a user, and builds a `ScopeIndex`
   (scope.py). It is immutable: keep it as long as the scope's newest chunk and vector stay the same.
3. `rank` (ranking.py) adds five parts for every chunk of the scope, exactly, no approximate search:
   bm25      BM25 over the query's terms; the chunk's date counts as its words, speakers' names do not
   dense     cosine to the query's vector as a z-score within the scope (0 where a chunk has no vector yet)
   context   a share of what the turns just before and after score: the question next door names the subject
             and the answer does not ("Where was it taken?" "Banff.")
   speaker   a bonus when the query names the chunk's speaker
   question  a small minus for turns that ask: they name the subject and do not know the answer
4. No query vector, or none in the scope: dense is 0 and recall is keyword search with the same code.
5. `relevant_episodes` (episodes.py) gives the questions with their answers that the best turns belong to, and
   `hybrid_history` (hybrid.py) puts them before the newest turns.
The parts add up to the score, so `recall --explain` prints them as they are. Weights, measured: ranking.py.
"""

from turnlog.agent.recall.ranking import Query, Scored, VectorMismatch, Weights, rank
from turnlog.agent.recall.scope import ScopeIndex

__all__ = ["Query", "ScopeIndex", "Scored", "VectorMismatch", "Weights", "rank"]
