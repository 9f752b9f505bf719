"""How to type our command in the current shell and folder."""

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "turnkeeper"

MODULE = "turnkeeper.cli"
"""Runs where no script is installed."""


def command_line(*arguments: str) -> str:
    """Return the line to type or paste: `turnkeeper …` if the shell finds this installation on its `PATH`.

    Otherwise it begins with the path of the program, relative if that is below the working directory.
    """
    return " ".join([_program(), *map(shlex.quote, arguments)])


def _program() -> str:
    installed = _installed()
    if installed is None:
        return shlex.join([sys.executable, "-m", MODULE])
    on_path = shutil.which(NAME)
    if on_path and os.path.samefile(on_path, installed):
        return NAME
    return shlex.quote(_path(installed))


def _installed() -> Path | None:
    """Return the script that started this process, or the one beside the interpreter; `None`: there is none."""
    scripts = [Path(sys.argv[0]), Path(sys.executable).parent / NAME]
    return next((script for script in scripts if script.name == NAME and script.is_file()), None)


def _path(file: Path) -> str:
    file, folder = Path(os.path.abspath(file)), Path.cwd()  # `resolve` would follow links
    if not file.is_relative_to(folder):
        return str(file)
    relative = str(file.relative_to(folder))
    return relative if os.sep in relative else os.path.join(os.curdir, relative)  # a path without "."
