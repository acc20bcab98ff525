"""Creates HNSW indexes over a column `embedding` with vectors of several models; candidate_search.py uses them."""

import hashlib

import sqlalchemy as sa
from psycopg import sql

from turnlog.projectors.engine.writer import Connection

MAX_DIMENSIONS = 4_000  # the limit of an HNSW index over halfvec


def neighbour_indexes(table: sa.Table) -> str:
    """Returns SQL that creates one HNSW index for each model and dimension of the vectors. Existing indexes are
    kept."""
    name = table.name
    return f"""
DO $$ DECLARE
  pair text;
  pairs text[] := ARRAY(SELECT DISTINCT vector_dims(embedding) || ' ' || embedding_model FROM {name}
    WHERE embedding IS NOT NULL AND vector_dims(embedding) <= {MAX_DIMENSIONS});
BEGIN
  FOREACH pair IN ARRAY pairs LOOP
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON {name} USING hnsw '
      '((embedding::halfvec(%s)) halfvec_cosine_ops) WHERE embedding_model = %L',
      '{name}_hnsw_' || left(md5(pair), 8), split_part(pair, ' ', 1), substr(pair, strpos(pair, ' ') + 1));
  END LOOP;
END $$"""


async def ensure_neighbour_index(conn: Connection, table: sa.Table, model: str, dimensions: int) -> None:
    """Creates the index of one model, as neighbour_indexes does, before there are many vectors. If the index exists, it
    reads no rows of the table."""
    named = hashlib.md5(f"{dimensions} {model}".encode(), usedforsecurity=False).hexdigest()[:8]
    name = f"{table.name}_hnsw_{named}"
    rows = await conn.execute("SELECT to_regclass(quote_ident(%s))", (name,))
    row = await rows.fetchone()
    if dimensions > MAX_DIMENSIONS or (row is not None and row[0] is not None):
        return
    await conn.execute(
        sql.SQL(
            "CREATE INDEX IF NOT EXISTS {} ON {} USING hnsw ((embedding::halfvec({})) halfvec_cosine_ops) "
            "WHERE embedding_model = {}"
        ).format(sql.Identifier(name), sql.Identifier(table.name), sql.Literal(dimensions), sql.Literal(model))
    )
