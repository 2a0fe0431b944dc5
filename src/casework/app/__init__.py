"""The application's side: ``open``, the facades, the stores by URL.

``operations`` holds every operation of an application as a program; ``sync`` and ``aio`` are the two thin classes that
drive them. May import everything below.
"""
