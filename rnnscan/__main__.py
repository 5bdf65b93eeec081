"""`python -m rnnscan`: the command line."""

from rnnscan.cli import main


if __name__ == "__main__":
    main()
