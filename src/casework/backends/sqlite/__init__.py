"""The embedded store: one SQLite file, shared by threads and processes.

``layout`` says how a table lies in the file, ``reading`` and ``group`` do the reads and the writes in bulk, ``combine``
brings the writers of all threads into one commit, ``committing`` carries it out and knows what to do when it fails.
"""

from casework.backends.sqlite.backend import SqliteBackend

__all__ = ["SqliteBackend"]
