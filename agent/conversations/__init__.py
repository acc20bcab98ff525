"""A conversation loaded from the read models, now or at a past sequence."""
