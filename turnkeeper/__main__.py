"""Where the `turnkeeper` command begins."""

import sys

from turnkeeper.ops.local.process import missing_extra_explained


def main() -> None:
    """Run the command. Ctrl-C ends it quietly, also while its modules are still loaded."""
    try:
        with missing_extra_explained():
            from turnkeeper.cli import app
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
