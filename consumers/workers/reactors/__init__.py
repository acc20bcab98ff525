"""Reactors let models work on events and append the results to the log as events. They never write a read model.

The work itself is in agent/; the modules here decide when it is done or repeated, and which results are stored.
"""
