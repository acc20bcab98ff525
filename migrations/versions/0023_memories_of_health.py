"""Indexes memories about health, which every answer looks up."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
ON_HEALTH = (
    "dedupe_key ~ '^(of:[^:]*:)?(allergy|diet|health|medication|pregnancy)' OR content ~* "
    "'allerg|intoleran|c(o)?eliac|diabet|epilep|asthma|vegan|vegetarian|halal|kosher|medication"
    "|过敏|不耐|忌口|糖尿病|哮喘|癫痫|吃素|素食|清真'"
)


def upgrade() -> None:
    op.create_index(
        "memories_on_health", "memories", ["thread_id", "confirmed_at"], postgresql_where=sa.text(ON_HEALTH)
    )
