"""`python -m bayescope` is the command line `bayescope`."""

from bayescope.cli import main

if __name__ == "__main__":
    main()
