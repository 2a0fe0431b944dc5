"""The kernel: items, conditions, effects and programs. Pure: no clock, no random, no I/O.

May import the standard library, msgspec and :mod:`casework.errors`; nothing else of casework.
"""
