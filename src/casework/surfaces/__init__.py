"""Surfaces: how the guarantees reach functions, HTTP servers and queues.

``decorator.py`` and ``once.py`` for functions and blocks, ``asgi.py`` and ``wsgi.py`` for HTTP, ``batch.py`` and
``consumer.py`` for queues; ``guard.py`` is what they share. May import everything below, ``casework.app`` included.
"""
