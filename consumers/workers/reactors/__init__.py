"""Reactors: model work on events, written back to the log as events. They never write a read model.

The work itself is in agent/: these modules say when it is done, again after which failures, and what is stored.
"""
