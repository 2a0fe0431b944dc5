"""``python -m casework``: the command line."""

from casework.cli import main

if __name__ == "__main__":
    main()
