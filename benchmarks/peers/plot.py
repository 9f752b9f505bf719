"""`docs/pictures/peers.svg`: turn time and stored bytes over the turns of a conversation."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path
from statistics import median

from benchmarks.peers.recording import Recording, SystemSamples

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "peers.svg"

WIDTH, HEIGHT = 1_000, 360
PANEL, PANEL_HEIGHT = 280, 250
LEFT, TOP, GAP = 48, 50, 500
"""The first panel's corner, and how far the second one is to the right of it."""

LINE_HEIGHT = 15
SMOOTH = 5
"""A turn's time is shown as the median of this number of turns around it."""

COLOURS = ("#0969da", "#bf5700", "#8250df", "#1a7f37", "#9a6700", "#57606a")
DARK_COLOURS = ("#58a6ff", "#f0883e", "#bc8cff", "#3fb950", "#d29922", "#8b949e")

STYLE = f"""
text {{ font: 12px system-ui, sans-serif; fill: #1f2328; }}
.title {{ font-weight: 600; }}
.grid {{ stroke: #d1d9e0; }}
polyline {{ fill: none; stroke-width: 1.5; }}
.s0 {{ stroke-width: 3; }}
{" ".join(f".s{number} {{ stroke: {colour}; }}" for number, colour in enumerate(COLOURS))}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6edf3; }}
  .grid {{ stroke: #3d444d; }}
  {" ".join(f".s{number} {{ stroke: {colour}; }}" for number, colour in enumerate(DARK_COLOURS))}
}}
"""


@dataclass(frozen=True)
class Curve:
    """A system's values by turn; `number` is its place among the systems, for its colour."""

    number: int
    label: str
    values: Sequence[float]


def plot(recording: Recording) -> str:
    """Return the picture as SVG; it follows the reader's colour scheme."""
    systems = list(enumerate(recording.measured))
    times = [_curve(number, system, smoothed(medians(system.milliseconds)), "ms") for number, system in systems]
    sizes = [
        _curve(number, system, [value / 1e6 for value in medians(system.stored)], "MB") for number, system in systems
    ]
    description = "Left: milliseconds of each turn. Right: megabytes stored after each turn."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{description}</title><style>{STYLE}</style>",
            *_panel(LEFT, "Time of a turn, in ms", times),
            *_panel(LEFT + GAP, "Stored after each turn, in MB", sizes),
            "</svg>\n",
        ]
    )


def _curve(number: int, system: SystemSamples, values: Sequence[float], unit: str) -> Curve:
    digits = 0 if values[-1] >= 10 else 1
    return Curve(number, f"{system.name}: {values[-1]:,.{digits}f} {unit}", values)


def medians(conversations: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of all conversations for each turn that all of them have."""
    return [median(values) for values in zip(*conversations, strict=False)]


def smoothed(values: Sequence[float]) -> list[float]:
    """Return each value as the median of those around it.

    >>> smoothed([1, 9, 1, 1, 1])
    [1, 1.0, 1, 1.0, 1]
    """
    around = SMOOTH // 2
    return [median(values[max(0, place - around) : place + around + 1]) for place in range(len(values))]


def _panel(left: int, title: str, curves: Sequence[Curve]) -> list[str]:
    """Return the axes, and each curve with its label at its end."""
    top, turns = max(max(curve.values) for curve in curves), max(len(curve.values) for curve in curves)
    step = round_step(top)
    bottom = TOP + PANEL_HEIGHT

    def x(turn: int) -> float:
        return left + PANEL * turn / turns

    def y(value: float) -> float:
        return bottom - PANEL_HEIGHT * value / top

    lines = [f'<text class="title" x="{left}" y="{TOP - 22}">{title}</text>']
    for tick in range(int(top / step) + 1):
        height = y(tick * step)
        lines.append(f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{height:.1f}" y2="{height:.1f}"/>')
        lines.append(f'<text x="{left - 6}" y="{height + 4:.1f}" text-anchor="end">{tick * step:,g}</text>')
    for turn in range(0, turns + 1, max(1, turns // 5)):
        lines.append(f'<text x="{x(turn):.1f}" y="{bottom + 18}" text-anchor="middle">{turn}</text>')
    lines.append(f'<text x="{left + PANEL / 2}" y="{bottom + 38}" text-anchor="middle">turn</text>')
    for curve in reversed(curves):  # ours is drawn last, over the others
        points = " ".join(f"{x(turn):.1f},{y(value):.1f}" for turn, value in enumerate(curve.values, start=1))
        lines.append(f'<polyline class="s{curve.number}" points="{points}"/>')
    ends = apart([y(curve.values[-1]) for curve in curves])
    for curve, end in zip(curves, ends, strict=True):
        text = left + PANEL + 8
        lines.append(f'<line class="s{curve.number}" x1="{text}" x2="{text + 10}" y1="{end:.1f}" y2="{end:.1f}"/>')
        lines.append(f'<text x="{text + 14}" y="{end + 4:.1f}">{curve.label}</text>')
    return lines


def round_step(top: float) -> float:
    """Return a round distance between the lines of a scale up to `top`, for four to ten lines.

    >>> round_step(430), round_step(0.7)
    (100.0, 0.1)
    """
    power = 10.0 ** floor(log10(top))
    return next(power / part for part in (1, 2, 5, 10) if top * part / power >= 4)


def apart(heights: Sequence[float]) -> list[float]:
    """Return the heights of labels, moved up from the lowest one so that none covers another.

    >>> apart([100, 200, 195])
    [100, 200, 185]
    """
    order = sorted(range(len(heights)), key=lambda place: -heights[place])
    result, limit = list(heights), float("inf")
    for place in order:
        result[place] = min(heights[place], limit)
        limit = result[place] - LINE_HEIGHT
    return result
