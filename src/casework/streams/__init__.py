"""Streams: many writers append, readers get every operation once, in one order, without a hole.

``log`` says how a stream is stored; ``append`` and ``read`` are its two halves, ``retention`` keeps it from growing for
ever, ``consumer`` keeps named cursors. ``writer`` combines the appends of one process. All of them are programs.
"""
