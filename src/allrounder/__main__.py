"""`python -m allrounder`."""

from allrounder.cli import main

if __name__ == "__main__":
    main()
