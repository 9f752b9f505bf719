"""What Linux says of processes: CPU time, memory and command lines. Rows that need it fail elsewhere."""

import os
from pathlib import Path


def tree(pid: int) -> list[int]:
    """Return the ids of a process and of all processes below it."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended meanwhile, or this is no Linux
        return []
    return [pid, *(below for child in children for below in tree(child))]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process since its start, its threads included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_megabytes(pid: int) -> float:
    """Return the memory that the process shares with no other one."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def arguments(pid: int) -> list[str]:
    """Return the command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
