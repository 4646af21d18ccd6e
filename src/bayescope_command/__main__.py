"""`python -m bayescope_command` is the command line `bayescope`, as `python -m bayescope` is."""

from bayescope_command import main

if __name__ == "__main__":
    main()
