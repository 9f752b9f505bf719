"""Runs a script of a test, which is the first argument, in a process that has imported our code already."""

import sys

if __name__ == "__main__":
    exec(sys.argv.pop(1), {"__name__": "__main__"})
