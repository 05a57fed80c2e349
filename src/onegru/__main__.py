"""`python -m onegru`: the command line."""

from onegru.cli import main

if __name__ == "__main__":
    main()
