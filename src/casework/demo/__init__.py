"""The demo: an order machine on real worker processes, one of which is killed, and the proof that nothing was lost.

``machine`` holds the machines and their functions, ``world`` what customers and the bank do, ``proof`` the checks.
Import ``run_demo`` from ``casework.demo.run``.
"""
