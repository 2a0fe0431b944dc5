"""Idempotency: of many callers with one key one works, and the others get its result.

Here are the programs: ``record.py`` (what is stored), ``lifecycle.py`` (claim, complete, release, renew),
``waiting.py`` (one shared poll per key), ``guarding.py`` (what every surface does around the work), ``keys.py`` and
``codecs.py``. The stores that users hold are in :mod:`casework.app.idempotency_store`, the surfaces (decorator, HTTP,
queues) in :mod:`casework.surfaces`. May import the kernel and :mod:`casework.errors`.
"""
