"""SQL statements of `memories`; projection.py maps events to them."""

from datetime import UTC, datetime

MAX_SOURCES = 100  # per row; the log has all of them
LAST_EXPIRY = datetime(9998, 12, 31, tzinfo=UTC)  # the latest expiry, however often a memory is repeated

# Allergies, illnesses, diets and medication of the user and of relatives: an answer must not overlook them.
ON_HEALTH = (
    "dedupe_key ~ '^(of:[^:]*:)?(allergy|diet|health|medication|pregnancy)' OR content ~* "
    "'allerg|intoleran|c(o)?eliac|diabet|epilep|asthma|vegan|vegetarian|halal|kosher|medication"
    "|过敏|不耐|忌口|糖尿病|哮喘|癫痫|吃素|素食|清真'"
)

_ONE = "WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND id = %(id)s"
_MANY = "WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND id = ANY(%(ids)s::uuid[])"

# A later repetition extends the time to live; an earlier one moves valid_from back.
CONFIRM = f"""
UPDATE memories SET importance = %(importance)s, confidence = %(confidence)s,
  importance_at = greatest(importance_at, %(at)s), valid_from = least(valid_from, %(said_at)s),
  expires_at = CASE WHEN expires_at IS NOT NULL THEN
    least(expires_at + greatest(%(said_at)s - confirmed_at, interval '0'), '{LAST_EXPIRY.isoformat()}') END,
  confirmed_at = greatest(confirmed_at, %(said_at)s),
  sources = CASE WHEN sources @> %(source)s::jsonb OR jsonb_array_length(sources) >= {MAX_SOURCES} THEN sources
    ELSE sources || %(source)s::jsonb END
{_ONE} AND status <> 'forgotten'"""

REVISE = """
UPDATE memories SET valid_to = %(valid_to)s, replaced_by = %(replaced_by)s, closed_reason = %(reason)s,
  status = CASE WHEN status = 'forgotten' THEN status WHEN %(valid_to)s::timestamptz IS NULL THEN 'valid'
    ELSE 'closed' END,
  archived_at = CASE WHEN %(valid_to)s::timestamptz IS NOT NULL THEN archived_at END,
  archived_reason = CASE WHEN %(valid_to)s::timestamptz IS NOT NULL THEN archived_reason END
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND id = %(memory_id)s"""

RATE = f"UPDATE memories SET importance = %(importance)s, importance_at = %(at)s {_ONE}"

FORGET = f"""
UPDATE memories SET status = 'forgotten', content = '', category = NULL, value = NULL, terms = '{{}}',
  dedupe_key = NULL, entities = '{{}}', metadata = NULL, embedding = NULL, embedding_model = NULL,
  archived_reason = NULL, valid_to = coalesce(valid_to, %(at)s),
  closed_reason = 'forgotten', sources = (SELECT coalesce(jsonb_agg(s || '{{"quote": ""}}' ORDER BY n), '[]')
    FROM jsonb_array_elements(sources) WITH ORDINALITY AS x (s, n))
{_ONE}"""
FORGET_QUESTIONS = """
UPDATE memory_conflicts SET question = '' WHERE tenant = %(tenant)s AND thread_id = %(thread)s
AND (memory_id = %(id)s OR against @> ARRAY[%(id)s::uuid])"""

PEND = f"UPDATE memories SET status = 'pending' {_ONE} AND status = 'valid'"

ANSWER = """
UPDATE memory_conflicts SET answer = %(answer)s, answered_at = %(at)s
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND conflict_id = %(id)s"""

ACCESS = f"""
UPDATE memories SET access_count = access_count + 1, last_accessed_at = greatest(last_accessed_at, %(at)s)
{_MANY}"""

EMBED = """
UPDATE memories m SET embedding = c.embedding, embedding_model = c.model FROM embedding_cache c
WHERE m.tenant = %(tenant)s AND m.thread_id = %(thread)s AND m.id = ANY(%(ids)s::uuid[]) AND m.status <> 'forgotten'
AND c.model = %(model)s AND c.text_hash = sha256(convert_to(m.content, 'UTF8'))"""

ARCHIVE_ONE = f"""
UPDATE memories SET status = 'archived', archived_at = coalesce(archived_at, %(at)s), archived_reason = %(reason)s
{_ONE} AND status IN ('valid', 'archived')"""
ARCHIVE = f"UPDATE memories SET status = 'archived', archived_at = %(due_at)s {_MANY} AND status = 'valid'"
EXPIRE = f"""
UPDATE memories SET status = 'closed', closed_reason = 'expired',
  valid_to = coalesce(valid_to, expires_at, %(due_at)s)
{_MANY} AND status IN ('valid', 'archived', 'pending')"""
DELETE = f"DELETE FROM memories {_MANY}"

UNDO = """
UPDATE memory_compactions SET undone_at = %(at)s
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND event_id = %(id)s"""

PREFER = """
INSERT INTO user_preferences AS t (tenant, thread_id, user_id, preferences, set_at)
VALUES (%(tenant)s, %(thread)s, %(user)s, %(preferences)s::jsonb, %(at)s)
ON CONFLICT (tenant, thread_id) DO UPDATE SET
  preferences = (t.preferences - %(cleared)s::text[]) || excluded.preferences, set_at = excluded.set_at"""

EXTRACTED = """
INSERT INTO memory_extractions AS t (tenant, thread_id, conversation, stage, user_id, through_seq, extractor, found,
  stored, error, extracted_at)
VALUES (%(tenant)s, %(thread)s, %(conversation)s, %(stage)s, %(user)s, %(through_seq)s, %(extractor)s, %(found)s,
  %(stored)s, %(error)s, %(at)s)
ON CONFLICT (tenant, thread_id, conversation, stage) DO UPDATE SET
  through_seq = greatest(t.through_seq, excluded.through_seq), extractor = excluded.extractor,
  found = t.found + excluded.found, stored = t.stored + excluded.stored, error = excluded.error,
  extracted_at = excluded.extracted_at"""
