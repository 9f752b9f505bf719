"""Where the `turnkeeper` command begins."""

import sys


def main() -> None:
    """Run the command. Ctrl-C ends it quietly, also while its modules are still loaded."""
    try:
        from turnkeeper.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
