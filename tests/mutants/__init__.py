"""Which faults would the tests miss? ``make mutants`` changes one place of the source at a time and runs the tests.

``mutations.py`` knows the changes, ``covering.py`` which tests run which line, ``trying.py`` runs them, ``__main__.py``
is the command. docs/design/mutants.md says what was measured.
"""
