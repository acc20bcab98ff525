"""Reactors: model work on events, written back to the log as events. They never write a read model.

The work itself is in agent/: these modules decide when it is done, when it is repeated, and which results are stored.
"""
