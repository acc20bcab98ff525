"""Reactors: model work on events, written back to the log as events. They never write a read model.

facts.py loads a thread's state, plan.py decides (pure), derive.py calls the models, results.py makes the events,
round.py separates failed from successful work, memory.py performs.
"""
