"""`python -m allrounder`."""

from allrounder.cli.main import main

if __name__ == "__main__":
    main()
