"""Executions: statecharts that live in a store, from their start to their end.

Everything about one execution is one partition: its state, its mailbox, its tasks, its trace. The modules here are
programs (pure generators over the kernel's effects) and one shell, the worker:

- ``state``: the state item, and what is inside it
- ``mailbox``: messages and dead letters
- ``runtime``: what the programs must know: machines, options
- ``change``: from the steps of a chart to the writes of one commit
- ``advance``: the one unit of work, ``handle`` and ``send``
- ``children``, ``spill``: fan-out and joins, and what does not fit one transaction
- ``tasks``: claim, heartbeat, finish
- ``control``: cancel, suspend, resume, redrive, purge, migrate, list
- ``retrying``: what is put off is due now
- ``store``: the store as a component of its own
- ``worker``: the shell that does what is due
"""
