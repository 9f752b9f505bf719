"""Two revisions beside each other: `python -m benchmarks.compare OTHER --only turns,throughput --pairs 9`.

`OTHER` is a checkout of the other revision, with an environment of its own, as `make bench` leaves one. The two run the
same measurements in turn, each with its own code. Printed are the medians of each row, and the median over the pairs of
this revision's value divided by the other one's; a row that is more than 5 % worse is marked.
"""

import argparse
import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parents[1]

WORSE = 1.05


def value(row: dict[str, Any]) -> float | None:
    """Return the first number of what was measured, or else the ratio.

    >>> value({"measured": "1,234.5 ms", "ratio": "2.00"}), value({"measured": "", "ratio": "0.83"})
    (1234.5, 0.83)
    >>> value({"measured": "none", "ratio": ""})
    """
    number = re.search(r"-?\d[\d,]*\.?\d*", row["measured"]) or re.search(r"[\d.]+", row["ratio"])
    return float(number[0].replace(",", "")) if number else None


def verdict(what: str, goal: str, others: list[float], ours: list[float]) -> str:
    """Return the line of a row; the values are those of pairs.

    >>> verdict("turn", "≤ 1 times", [100, 110, 90], [120, 99, 108])
    'turn | 100 | 108 | 1.20 | **worse**'
    """
    ratio = median(mine / theirs if theirs else 1.0 for mine, theirs in zip(ours, others, strict=True))
    is_worse = ratio < 1 / WORSE if goal.startswith("≥") else ratio > WORSE
    return f"{what} | {median(others):g} | {median(ours):g} | {ratio:.2f} | {'**worse**' if is_worse else ''}".rstrip()


def run(checkout: Path, only: str) -> list[dict[str, Any]]:
    """Return the rows of the measurements in a checkout."""
    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = [str(checkout / ".venv" / "bin" / "python"), "-m", "benchmarks", "--only", only, "--json", str(rows)]
        subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
        result: list[dict[str, Any]] = json.loads(rows.read_text())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("other", type=Path, help="a checkout of the other revision")
    parser.add_argument("--only", default="turns,throughput", help="measurements, with commas between them")
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    values: dict[str, dict[Path, list[float]]] = defaultdict(lambda: defaultdict(list))
    goals = dict[str, str]()
    checkouts = [options.other.resolve(), HERE]
    for pair in range(options.pairs):
        for checkout in checkouts if pair % 2 else checkouts[::-1]:
            for row in run(checkout, options.only):
                number, what = value(row), f"{row['section']}: {row['what']}"
                if number is not None:
                    goals[what] = row["goal"]
                    values[what][checkout].append(number)
        print(f"Pair {pair + 1} of {options.pairs} is measured", flush=True)
    print("\nwhat | other | this | this to other |\n---|---|---|---|---")
    for what, by_checkout in values.items():
        others, ours = (by_checkout[checkout] for checkout in checkouts)
        if len(others) == len(ours):
            print(verdict(what, goals[what], others, ours))


if __name__ == "__main__":
    main()
