"""Read models of conversations: messages, activity, forks, summaries, topics."""
