"""Titles of the parts that turnlog adds to a conversation; each title begins its part of a message.

The words under a title are not the user's. Under each title in NOTES there is a list; under those in SAID_EARLIER, each
line names its speaker.
"""

MEMORIES = "[LONG-TERM MEMORIES]"
OTHER_CONVERSATIONS = "[OTHER CONVERSATIONS]"
DOCUMENTS = "[DOCUMENTS]"
EARLIER = "[EARLIER IN THIS CONVERSATION]"
SUMMARY_TITLE = "[Conversation Summary]"
TOPICS_TITLE = "[Recallable Topics]"
PROFILE = "[PROFILE]"
TASK = "[TASK FROM ANOTHER AGENT]"
TOOL_RESULTS = "[TOOL RESULTS]"
ENTITIES = "People and things:"  # within the memories
SAID_EARLIER = (OTHER_CONVERSATIONS, EARLIER)
NOTES = (MEMORIES, DOCUMENTS, *SAID_EARLIER)
TITLES = (*NOTES, SUMMARY_TITLE, TOPICS_TITLE, PROFILE, TASK, TOOL_RESULTS)

# Lines in the block of memories that tell a model how to answer; they are not about the user.
NOT_KEPT = (
    "what the user asks to remember now holds a password, a key or a number of a card: it is not remembered, because "
    "memories go to models. Say so, and advise a password manager"
)
TO_FORGET = (
    "the user asks to forget something, which you cannot do. If it still stands here, say that the application's list "
    "of memories or `turnlog forget` deletes it"
)
TOLD = (NOT_KEPT, TO_FORGET)
