"""The simulator: every race replayed from a seed; see docs/design/simulator.md.

- ``world`` carries programs in virtual time: ``carrier`` (processes and tasks), ``choices`` (decisions, drawn or
  replayed), ``schedules`` (who goes next; every run of a small scenario), ``clocks``
- ``store`` is DynamoDB at its weakest: ``index`` (lagging), ``partitions`` (limits), ``faults`` (what goes wrong, and
  how often); ``backend`` is the same store as a backend, for the contract
- ``runner`` runs scenarios, finds failures and shrinks them: ``checkers``, ``timeline``, ``versions``
- ``scenarios`` are our own programs under all of that: executions, races, lives, outcomes of tasks, operators, streams,
  their consumers, buffering, repair, truncation, idempotency, transactions, the store component; and users' charts
- ``users`` is ``casework.simulate``: ``invariants``, ``standins`` (for tasks), ``shapes``, ``payloads`` and ``guesses``
  (what charts read, and what to give them), ``reached``, ``story`` (the timeline in the user's words), ``replay``
"""
