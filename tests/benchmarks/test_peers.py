"""The results of `make bench-peers` from recorded samples: OPS-11."""

import doctest
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from benchmarks import compare, results
from benchmarks.peers import install, plot, recording, report, work
from benchmarks.peers.recording import Recording, SystemSamples
from benchmarks.peers.systems import IN_PROCESS, ON_TEMPORAL, OURS, database_bytes

TURNS = 20
PYDANTIC_AI, OPENAI_AGENTS, _ = ON_TEMPORAL.values()
LANGGRAPH, DBOS = IN_PROCESS.values()


def samples(name: str, *, first: float, growth: float, stored: int, rate: float) -> SystemSamples:
    """Return two conversations: turn `n` takes `first + n * growth` ms and stores `stored` bytes."""
    times = [first + turn * growth for turn in range(TURNS)]
    sizes = [stored * turn for turn in range(1, TURNS + 1)]
    return SystemSamples(name, {name: "1.0"}, [times, times], [sizes, sizes], [rate, rate], actions=4, events=22)


RECORDING = Recording(
    machine="2026-11-23 14:00 UTC, 2 cores",
    tool_calls=1,
    sessions=32,
    is_on_disk=False,
    systems=[
        samples(OURS, first=40, growth=0, stored=9_000, rate=30),
        samples(PYDANTIC_AI, first=50, growth=10, stored=1_000_000, rate=10),
        samples(LANGGRAPH, first=10, growth=1, stored=100_000, rate=60),
        SystemSamples(OPENAI_AGENTS, {}, [[50.0]], [[9_000]], failure="its process ended"),
        SystemSamples(DBOS, failure="it can't be installed"),
    ],
)


@pytest.mark.parametrize("module", [compare, results, install, plot, report, work], ids=lambda module: module.__name__)
def test_ops_11_the_examples_of_the_report_are_right(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_ops_11_libraries_are_compared_at_the_first_middle_and_last_turns() -> None:
    assert [(row.what, row.measured, row.floor, row.ratio, row.reached) for row in report.comparisons(RECORDING)] == [
        (f"turn time, turns 1 to 5, to {PYDANTIC_AI}", "40 ms", "70 ms", "0.57", True),
        (f"turn time, turns 6 to 10, to {PYDANTIC_AI}", "40 ms", "120 ms", "0.33", False),
        (f"turns a second, 32 sessions, to {PYDANTIC_AI}", "30.0", "10.0", "3.00", True),
        (f"stored by a turn, turns 6 to 10, to {PYDANTIC_AI}", "9.0 KB", "1.0 MB", "1/111", True),
        (f"stored by a turn, turns 6 to 10, to {LANGGRAPH}", "9.0 KB", "100.0 KB", "1/11", False),
        (f"stored by a turn, turns 16 to 20 to turns 1 to 5, to {LANGGRAPH}'s", "1.00 times", "1.00 times", "", True),
        (f"turn time, ours is below that of {LANGGRAPH} from", "turn 32 (extrapolated)", "+0.96 ms a turn", "", None),
    ]


def test_ops_11_a_library_that_cannot_run_here_is_listed_with_the_reason() -> None:
    lines = report.section(RECORDING).splitlines()
    assert f"Not measured to the end: {OPENAI_AGENTS}: its process ended." in lines
    assert f"Not measured to the end: {DBOS}: it can't be installed." in lines
    assert not [line for line in lines if line.startswith((f"| {OPENAI_AGENTS} |", f"| {DBOS} |"))]


def test_ops_11_the_chart_has_a_line_for_each_measured_system(tmp_path: Path) -> None:
    picture = ElementTree.fromstring(plot.plot(RECORDING))
    svg = "{http://www.w3.org/2000/svg}"
    assert [line.get("class") for line in picture.iter(f"{svg}polyline")] == ["s2", "s1", "s0"] * 2
    assert f"{OURS}: 40 ms" in [text.text for text in picture.iter(f"{svg}text")]


def test_ops_11_the_published_results_and_chart_match_the_samples() -> None:
    run = recording.load()
    page = results.RESULTS.read_text()
    assert page == results.with_peers(page, report.section(run))
    assert plot.PICTURE.read_text() == plot.plot(run)


def test_ops_11_samples_survive_a_round_trip_through_json(tmp_path: Path) -> None:
    recording.save(RECORDING, tmp_path / "samples.json")
    assert recording.load(tmp_path / "samples.json") == RECORDING


def test_ops_11_the_bytes_of_a_database_are_the_bytes_of_its_values(tmp_path: Path) -> None:
    database = tmp_path / "database"
    assert database_bytes(database) == 0
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE states (name TEXT, state BLOB)")
        connection.execute("INSERT INTO states VALUES ('é', x'0102'), ('b', NULL)")
        connection.commit()
    assert database_bytes(database) == 2 + 2 + 1
