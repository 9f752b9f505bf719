"""`python -m tests.faults.team_day`, or `make team-day`: exit code 0 if nothing surprising happened.

Exit code 1: something did, and the output says what. 2: the day itself failed, which proves nothing. 130: it was
stopped.
"""

import argparse
import json
import sys
import tempfile
import traceback
from pathlib import Path

from tests.faults.team_day.day import Options, run_day
from tests.faults.team_day.evidence import Evidence
from turnkeeper.ops.local.process import run_to_end
from turnkeeper.ops.local.supervisor import run_until_signalled

PASSED, BROKEN, FAILED, STOPPED = 0, 1, 2, 130


def main() -> int:
    parser = argparse.ArgumentParser(prog="make team-day", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="length of the day (default: 3)")
    parser.add_argument("--people", type=int, default=10, help="of each of the three tenants (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of what everybody does")
    parser.add_argument("--report", metavar="FILE", help="write a JSON report there")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-day-")).resolve()
    options = Options(minutes=arguments.minutes, people=arguments.people, seed=arguments.seed)
    try:
        evidence = run_until_signalled(run_day(options, folder, say=lambda line: print(line, flush=True)))
    except Exception:  # noqa: BLE001 - an error of the day itself is no verdict
        traceback.print_exc()
        print(f"The day itself failed; {folder} is left as it is.", file=sys.stderr)
        return FAILED
    if evidence is None:
        return STOPPED
    if arguments.report:
        Path(arguments.report).write_text(json.dumps(report(evidence), indent=1))
    print(table(evidence))
    return BROKEN if evidence.surprises else PASSED


def report(evidence: Evidence) -> dict[str, object]:
    return {
        "accepted": sum(evidence.accepted.values()),
        "outcomes": [[*key, count] for key, count in sorted(evidence.outcomes.items())],
        "events": evidence.events,
        "surprises": evidence.surprises,
    }


def table(evidence: Evidence) -> str:
    rows = [
        f"  {way:9} {action:14} {outcome:14} {n:6}" for (way, action, outcome), n in sorted(evidence.outcomes.items())
    ]
    surprises = [f"  SURPRISE  {text}" for text in evidence.surprises] or ["  no surprise"]
    return "\n".join([*(f"  {event}" for event in evidence.events), *rows, *surprises])


if __name__ == "__main__":
    run_to_end(lambda: sys.exit(main()))
