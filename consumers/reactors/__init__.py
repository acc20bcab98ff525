"""Reactors: model work made from the log, written back to it as events. They never write a read model.

facts.py loads what a thread looks like, plan.py decides (pure), derive.py calls the models, results.py makes the
events, round.py keeps what failed apart from what did not, memory.py performs.
"""
