"""`python -m tests.faults.campaign`, or `make soak`: exit code 0 if every promise was kept, 1 if not.

Exit code 2: the campaign itself failed, which proves nothing. 130: somebody stopped it.
"""

import argparse
import json
import sys
import tempfile
import traceback
from pathlib import Path

from tests.faults.campaign.campaign import Options, run_campaign
from tests.faults.campaign.checker import violations
from tests.faults.campaign.report import as_json, table
from turnkeeper.ops.local.process import run_to_end
from turnkeeper.ops.local.supervisor import run_until_signalled

PASSED, BROKEN, FAILED, STOPPED = 0, 1, 2, 130


def main() -> int:
    arguments = _arguments()
    options = Options(minutes=arguments.minutes, sessions=arguments.sessions, seed=arguments.seed, busy=arguments.busy)
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-soak-")).resolve()
    print(f"{options}\nEverything is in {folder}, and log.jsonl there grows.", flush=True)
    try:
        evidence = run_until_signalled(run_campaign(options, folder, say=_say))
    except Exception:  # noqa: BLE001 - whatever it was, it is no verdict
        traceback.print_exc()
        print(f"The campaign itself failed; {folder} is left as it is.", file=sys.stderr)
        return FAILED
    if evidence is None:
        print(f"Stopped; {folder} is left as it is.")
        return STOPPED
    broken_promises = violations(evidence)
    title = f"{options.minutes:g} minutes, {options.sessions} sessions, seed {options.seed}"
    print(table(evidence, broken_promises, f"{title}, {'all cores taken' if options.busy else 'a quiet machine'}"))
    report = json.dumps(as_json(evidence, broken_promises, options=vars(arguments) | {"folder": str(folder)}), indent=1)
    (folder / "report.json").write_text(report)
    if arguments.report:
        Path(arguments.report).write_text(report)
    print(f"  {folder / 'report.json'}")
    return BROKEN if broken_promises else PASSED


def _say(line: str) -> None:
    print(line, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="of load and faults (default: 3)")
    parser.add_argument("--sessions", type=int, default=10, help="each with a writer, a watcher and a poller")
    parser.add_argument("--seed", type=int, default=1, help="of faults, load and scripts")
    parser.add_argument("--busy", action="store_true", help="keep every core busy with something else meanwhile")
    parser.add_argument("--report", metavar="FILE", help="also write the JSON report there")
    return parser.parse_args()


if __name__ == "__main__":
    run_to_end(lambda: sys.exit(main()))
