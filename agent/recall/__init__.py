"""Finds the past turns that answer a question (recall).

1. The projector of chunks cuts every turn into chunks (projectors/models/chunks/chunking.py) and into search terms
   (projectors/models/terms.py: stemmed English, segmented Chinese); the embedder adds vectors later.
2. The scope is one thread or all threads of a user. A small scope is loaded completely as a `ScopeIndex` (scope.py),
   which is immutable and cached; the next search reads and adds new chunks (loaded_scope.py). For a large scope
   (large.py), indexes provide candidates with their neighbours, and a sample provides statistics of words and vectors.
3. The question is analysed (questions.py). The chunks are ranked for each part of it separately, and the result
   alternates between the best turns for each part.
4. `rank_parts` (ranking.py) adds up these parts of the score of every loaded chunk:
   bm25      BM25 over the query's terms; the chunk's date counts as words, speakers' names do not
   dense     similarity to the query's vector as a z-score within the scope (space.py; 0 without a vector)
   context   a share of the scores of the turns just before and after, the largest if the turn before is a question,
             because often only the question names the subject ("Where was it taken?" "Banff.")
   speaker   a bonus when the query names the chunk's speaker
   question  a penalty for turns that are questions: they name the subject but do not contain the answer
   opens     a bonus for the first turn after a pause if another turn follows soon; it often contains news
   detail    a bonus for a number, a name or a quotation; in a thread with an assistant, long turns get smaller values
             of question, opens and detail
   assistant a penalty for long answers of the assistant: they lose a part of their points for words, unless the
             question asks for the assistant's words
   time      a bonus for turns from a time that the question names, and a smaller one for turns soon after it
   feedback  similarity to the two best chunks so far, because the parts of an answer are often similar to each other
   thread    a share of the best score in the thread, for this part of a question and for all its parts
   session   a share of the best score in the session
5. Without a query vector, or without vectors in the scope, dense and feedback are 0: keyword search with the same code.
6. `relevant_episodes` (episodes.py) returns the question-answer pairs of the best turns, and `hybrid_history`
   (hybrid.py) puts them before the newest turns.
7. confidence.py estimates, separately from the ranking, the chance that something in the scope answers the question.
The parts add up to the score; `recall --explain` prints them. ranking.py lists the weights.
"""

from turnlog.agent.recall.ranking import Query, Scored, Weights, rank, rank_parts
from turnlog.agent.recall.scope import ScopeIndex
from turnlog.agent.recall.space import VectorMismatch

__all__ = ["Query", "ScopeIndex", "Scored", "VectorMismatch", "Weights", "rank", "rank_parts"]
