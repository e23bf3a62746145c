"""The report's charts: lines, mirrored histograms, intervals.

They are plain SVG text, so a report opens anywhere and needs no plotting library. Colours and
strokes are classes of report.css: one drawing serves light, dark and print. Whatever a colour
shows, a shape or a position shows too.
"""

import dataclasses
import math
import unicodedata
from collections.abc import Collection, Sequence

import numpy as np
from markupsafe import Markup, escape

from ark_jax.report.page import format_number

# Pixels. Small enough for a phone's column and a third of a page, so that the text keeps its size.
WIDTH = 300
MAX_POINTS = 600  # a longer curve is averaged down to this many points
BINS = 24


def finite(values: Sequence[float | None]) -> np.ndarray:
    """The finite values, float64 `[n]`; None counts as NaN."""
    values = np.array(values, np.float64)
    return values[np.isfinite(values)]


def axis_range(values: np.ndarray) -> tuple[float, float]:
    """The range of `values` with a margin of 6 % on either side, or of 10 % if they are equal."""
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    return low - margin, high + margin


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten within [low, high]."""
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= 0.8 * (high - low) / count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """The texts of ticks, with just enough decimals that no two are equal."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest < 1e-3 or largest >= 1e6:
        texts = (f"{value:.3g}" for value in values)
        return [x.replace("e-0", "e-").replace("e+0", "e").replace("-", "−") for x in texts]
    step = values[1] - values[0] if len(values) > 1 else largest
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:,.{decimals}f}".replace("-", "−") for value in values]


def px(value: float) -> str:
    """A coordinate in pixels as text, to one decimal, and never `-0`."""
    return f"{round(float(value), 1) + 0.0:g}"


def svg(name: str, title: str, desc: str, size: tuple[int, int], body: Sequence[str]) -> str:
    """A drawing of `size` (width, height), with a title and description for screen readers.

    Args:
        name: unique on the page.
    """
    return Markup(
        f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-labelledby="{name}-title" '
        f'aria-describedby="{name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(desc)}</desc>{"".join(body)}</svg>'
    )


def label(x: float, y: float, value: object, style: str = "tick", anchor: str = "start") -> str:
    """The SVG of a text with its baseline at `y`."""
    position = f'x="{px(x)}" y="{px(y)}" text-anchor="{anchor}"'
    return f'<text class="{style}" {position}>{escape(value)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """The SVG of a straight line between two points."""
    return f'<line class="{style}" x1="{px(x1)}" y1="{px(y1)}" x2="{px(x2)}" y2="{px(y2)}"/>'


@dataclasses.dataclass(frozen=True)
class Frame:
    """A plot area, and the ranges of the data in it.

    Args:
        box: left, top, right and bottom, in pixels.
    """

    box: tuple[float, float, float, float]
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float | np.ndarray) -> float | np.ndarray:
        """Pixels from the left."""
        low, high = self.x_range
        return self.box[0] + (value - low) / (high - low) * (self.box[2] - self.box[0])

    def y(self, value: float | np.ndarray) -> float | np.ndarray:
        """Pixels from the top."""
        low, high = self.y_range
        return self.box[3] - (value - low) / (high - low) * (self.box[3] - self.box[1])

    def x_axis(self, title: str, *, integers: bool = False, count: int = 5) -> list[str]:
        """The SVG of about `count` ticks with numbers, and the title, below the plot.

        Args:
            integers: leaves out fractions.
        """
        left_edge, _, right, bottom = self.box
        values = ticks(*self.x_range, count)
        if integers:
            values = [value for value in values if value == round(value)]
        pieces = [line(left_edge, bottom, right, bottom, "axis")]
        for value, text in zip(values, tick_labels(values), strict=True):
            pieces += [
                line(self.x(value), bottom, self.x(value), bottom + 4, "axis"),
                label(self.x(value), bottom + 17, text, anchor="middle"),
            ]
        return [*pieces, label((left_edge + right) / 2, bottom + 34, title, "name", "middle")]

    def y_axis(self, title: str, count: int = 4, mirrored: bool = False) -> list[str]:
        """The SVG of about `count` grid lines with numbers, and the title above them.

        Args:
            mirrored: shows numbers below zero without their sign.
        """
        left_edge, top, right, _ = self.box
        values = ticks(*self.y_range, count)
        pieces = [label(0, top - 10, title, "name")]
        for value, text in zip(values, tick_labels(values), strict=True):
            text = text.lstrip("−") if mirrored else text
            pieces += [
                line(left_edge, self.y(value), right, self.y(value), "rule"),
                label(left_edge - 7, self.y(value) + 4, text, anchor="end"),
            ]
        return pieces

    def path(self, xs: Sequence[float], ys: Sequence[float], style: str) -> str:
        """The SVG of a line through points in the data's units."""
        points = "L".join(f"{px(self.x(x))} {px(self.y(y))}" for x, y in zip(xs, ys, strict=True))
        return f'<path class="{style}" d="M{points}"/>'


def average_down(values: np.ndarray) -> np.ndarray:
    """At most `MAX_POINTS` values, each the mean of equally many neighbours."""
    size = -(-len(values) // MAX_POINTS)
    return np.array([values[i : i + size].mean() for i in range(0, len(values), size)])


def line_chart(
    name: str,
    title: str,
    xs: Sequence[float],
    ys: Sequence[float | None],
    *,
    x_title: str,
    y_title: str,
    height: int = 210,
    noisy: bool = False,
) -> str:
    """A drawing of a curve over steps; "" if no point is finite.

    Args:
        noisy: draws a long curve pale, under its running mean.
    """
    xs, ys = np.array(xs, np.float64), np.array(ys, np.float64)
    is_finite = np.isfinite(ys)
    if not is_finite.any():
        return ""
    dropped = int((~is_finite).sum())
    xs, ys = average_down(xs[is_finite]), average_down(ys[is_finite])
    frame = Frame((52, 28, WIDTH - 14, height - 40), axis_range(xs), axis_range(ys))
    body = frame.y_axis(y_title, count=4 if height > 160 else 3)
    body += frame.x_axis(x_title, integers=True)
    is_long = len(ys) >= 40
    if is_long and noisy:
        body += [frame.path(xs, ys, "curve pale"), frame.path(xs, _running_mean(ys), "curve")]
    else:
        body.append(frame.path(xs, ys, "curve"))
    if not is_long:
        body += [
            f'<circle class="dot" cx="{px(frame.x(x))}" cy="{px(frame.y(y))}" r="2.6">'
            f"<title>{x:g}: {y:.4g}</title></circle>"
            for x, y in zip(xs, ys, strict=True)
        ]
    gaps = f" Values that are not finite: {dropped}." if dropped else ""
    desc = (
        f"{y_title} from {x_title} {xs[0]:g} to {xs[-1]:g}: first {ys[0]:.4g}, last {ys[-1]:.4g}, "
        f"lowest {ys.min():.4g}, highest {ys.max():.4g}.{gaps}"
    )
    return svg(name, title, desc, (WIDTH, height), body)


def _running_mean(values: np.ndarray) -> list[float]:
    half = len(values) // 30
    return [values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))]


def histograms(
    name: str,
    title: str,
    above: tuple[str, Sequence[float]],
    below: tuple[str, Sequence[float]],
    *,
    x_title: str,
    x_range: tuple[float, float],
    things: str = "passages",
    bins: int = BINS,
) -> str:
    """A drawing of two histograms over one axis, one upwards and one downwards, in percent.

    Args:
        above, below: a label and the sample.
        things: the things that were measured, in the plural.
    """
    edges = np.linspace(*x_range, bins + 1)
    samples = [(text, finite(values)) for text, values in (above, below)]
    shares = [100 * np.histogram(values, edges)[0] / max(len(values), 1) for _, values in samples]
    top = max(1.0, float(np.max(shares))) * 1.22  # leaves a strip for the labels
    frame = Frame((40, 28, WIDTH - 14, 228), x_range, (-top, top))
    body, descriptions = frame.y_axis(f"share of {things} (%)", mirrored=True), []
    for (text, values), share, sign, style in zip(
        samples, shares, (1, -1), ("above", "below"), strict=True
    ):
        steps = np.concatenate([[0], np.repeat(share, 2), [0]]) * sign
        edge = frame.y(sign * top) + (11 if sign > 0 else -4)
        body += [
            frame.path(np.repeat(edges, 2), steps, style),
            label(frame.box[0] + 4, edge, text, "side"),
        ]
        descriptions.append(f"{text}: {len(values)} values")
        if len(values):
            median = float(np.median(values))
            x, median_text = frame.x(median), f"median {format_number(median, 2)}"
            body += [
                line(x, frame.y(0), x, frame.y(sign * top * 0.86), "median"),
                label(frame.box[2], edge, median_text, "side", "end"),
            ]
            descriptions[-1] += f", {median_text}"
    body += [
        line(frame.box[0], frame.y(0), frame.box[2], frame.y(0), "axis"),
        *frame.x_axis(x_title),
    ]
    return svg(name, title, "; ".join(descriptions) + ".", (WIDTH, 268), body)


def interval_plot(
    name: str,
    title: str,
    rows: Sequence[tuple[str, float, float, float]],
    *,
    x_title: str,
    reference: float | None = None,
    hollow: Collection[str] = (),
) -> str:
    """A drawing of points with intervals, one row each, from top to bottom.

    Args:
        rows: label, middle, low and high. If the reference is 0, a middle is written with its sign.
        reference: the position of a dashed line.
        hollow: labels of the points that are drawn as rings.
    """
    bottom = 14 + 28 * len(rows)
    values = [value for row in rows for value in row[1:]]
    values += [] if reference is None else [reference]
    names = [shorten(text, 16) for text, *_ in rows]
    left_edge = 14 + 1.1 * max(map(text_width, names))
    x_range = axis_range(np.array(values, np.float64))
    frame = Frame((left_edge, 6, WIDTH - 54, bottom), x_range, (0.0, 1.0))
    count = 4 if left_edge < 80 else 3
    body = [line(frame.x(v), 6, frame.x(v), bottom, "rule") for v in ticks(*x_range, count)]
    body += frame.x_axis(x_title, count=count)
    if reference is not None:
        body.append(line(frame.x(reference), 6, frame.x(reference), bottom, "reference"))
    for i, (text, middle, low, high) in enumerate(rows):
        y, sign = 24 + 28 * i, "+" if reference == 0 and round(middle, 3) > 0 else ""
        style = "point hollow" if text in hollow else "point"
        body += [
            label(left_edge - 10, y + 4, names[i], "name", "end"),
            line(frame.x(low), y, frame.x(high), y, "interval"),
            *(line(frame.x(v), y - 4, frame.x(v), y + 4, "interval") for v in (low, high)),
            f'<circle class="{style}" cx="{px(frame.x(middle))}" cy="{y}" r="4.5"/>',
            label(WIDTH - 2, y + 4, sign + format_number(middle), "value", "end"),
        ]
    desc = "; ".join(
        f"{text}: {format_number(middle)}, interval {format_number(low)} to {format_number(high)}"
        for text, middle, low, high in rows
    )
    return svg(name, title, desc + ".", (WIDTH, bottom + 42), body)


def shorten(text: str, length: int) -> str:
    """A text of at most `length` characters; one that is cut ends in an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def text_width(text: str) -> float:
    """The approximate width of text of 13 px. East Asian letters are twice as wide as others."""
    return sum(13.0 if unicodedata.east_asian_width(letter) in "WF" else 6.7 for letter in text)
