"""The report's drawings: line chart, mirrored histograms, interval plot, knowledge graph.

Plain SVG text, drawn without a plotting library, so that a report opens anywhere. Colours and strokes are
classes of report.css: one drawing serves light, dark and print. What colour tells, shape or place tells too.
"""

import dataclasses
import math
import unicodedata
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ark_jax.evaluate.page import escape, number

WIDTH = 300  # Small multiples fit a phone's column and a third of a page, so their text keeps its size.
POINTS = 600  # A curve with more points than pixels is averaged down to this many.
BINS = 24
GRAPH = (880, 560)


def finite(values: Sequence[float | None]) -> np.ndarray:
    """The values that can be drawn, float64 `[n]`."""
    values = np.array(values, np.float64)  # None -> nan
    return values[np.isfinite(values)]


def room(values: np.ndarray) -> tuple[float, float]:
    """An axis range with 6 % to spare on either side; of one value, 10 % of it."""
    low, high = float(values.min()), float(values.max())
    spare = 0.06 * (high - low) or 0.1 * abs(high) or 0.1
    return low - spare, high + spare


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """The multiples of 1, 2 or 5 times a power of ten within [low, high], about `most` of them."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= 0.8 * (high - low) / most)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """One text a tick, all with as many decimals as tell them apart."""
    largest = max((abs(v) for v in values), default=0.0)
    if largest < 1e-3 or largest >= 1e6:
        return [f"{v:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−") for v in values]
    step = values[1] - values[0] if len(values) > 1 else largest
    return [f"{v:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}".replace("-", "−") for v in values]


def px(value: float) -> str:
    """A coordinate to a tenth of a pixel: short, and never `-0`."""
    return f"{round(float(value), 1) + 0.0:g}"


def svg(name: str, title: str, desc: str, size: tuple[int, int], body: Sequence[str]) -> str:
    """One drawing, titled and described for screen readers; `name` is unique on its page."""
    return (f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-labelledby="{name}-title" '
            f'aria-describedby="{name}-desc"><title id="{name}-title">{escape(title)}</title>'
            f'<desc id="{name}-desc">{escape(desc)}</desc>{"".join(body)}</svg>')


def label(x: float, y: float, value: object, style: str = "tick", anchor: str = "start") -> str:
    """Text with its baseline at y."""
    return f'<text class="{style}" x="{px(x)}" y="{px(y)}" text-anchor="{anchor}">{escape(value)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A straight line between two points."""
    return f'<line class="{style}" x1="{px(x1)}" y1="{px(y1)}" x2="{px(x2)}" y2="{px(y2)}"/>'


@dataclasses.dataclass(frozen=True)
class Frame:
    """A plot area in pixels (left, top, right, bottom) and the ranges of the data it shows."""

    box: tuple[float, float, float, float]
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value):
        """Pixels from the left, of a number or an array."""
        low, high = self.x_range
        return self.box[0] + (value - low) / (high - low) * (self.box[2] - self.box[0])

    def y(self, value):
        """Pixels from the top, of a number or an array."""
        low, high = self.y_range
        return self.box[3] - (value - low) / (high - low) * (self.box[3] - self.box[1])

    def x_axis(self, title: str, *, whole: bool = False, most: int = 5) -> list[str]:
        """Ticks, numbers and title below the plot; `whole` leaves out fractions, for counts."""
        left, _, right, bottom = self.box
        at = [v for v in ticks(*self.x_range, most) if not whole or v == round(v)]
        out = [line(left, bottom, right, bottom, "axis")]
        for value, text in zip(at, tick_labels(at), strict=True):
            out += [line(self.x(value), bottom, self.x(value), bottom + 4, "axis"),
                    label(self.x(value), bottom + 17, text, anchor="middle")]
        return [*out, label((left + right) / 2, bottom + 34, title, "name", "middle")]

    def y_axis(self, title: str, most: int = 4, mirrored: bool = False) -> list[str]:
        """Grid lines with their numbers; the title stands above, where it can be read without turning."""
        at = ticks(*self.y_range, most)
        out = [label(0, self.box[1] - 10, title, "name")]
        for value, text in zip(at, tick_labels(at), strict=True):
            text = text.lstrip("−") if mirrored else text
            out += [line(self.box[0], self.y(value), self.box[2], self.y(value), "rule"),
                    label(self.box[0] - 7, self.y(value) + 4, text, anchor="end")]
        return out

    def path(self, xs: Sequence[float], ys: Sequence[float], style: str) -> str:
        """A line through the points, in the data's units."""
        points = "L".join(f"{px(self.x(x))} {px(self.y(y))}" for x, y in zip(xs, ys, strict=True))
        return f'<path class="{style}" d="M{points}"/>'


def thinned(values: np.ndarray) -> np.ndarray:
    """At most POINTS values, each the mean of equally many neighbours."""
    size = -(-len(values) // POINTS)
    return np.array([values[i : i + size].mean() for i in range(0, len(values), size)])


def line_chart(name: str, title: str, xs: Sequence[float], ys: Sequence[float | None], *, x_title: str,
               y_title: str, height: int = 210, noisy: bool = False) -> str:
    """A curve over steps; a long `noisy` one pale, under its running mean. "" where no point is finite."""
    xs, ys = np.array(xs, np.float64), np.array(ys, np.float64)
    keep = np.isfinite(ys)
    if not keep.any():
        return ""
    lost, xs, ys = int((~keep).sum()), thinned(xs[keep]), thinned(ys[keep])
    frame = Frame((52, 28, WIDTH - 14, height - 40), room(xs), room(ys))
    body = frame.y_axis(y_title, most=4 if height > 160 else 3) + frame.x_axis(x_title, whole=True)
    if len(ys) >= 40 and noisy:
        half = len(ys) // 30
        mean = [ys[max(0, i - half) : i + half + 1].mean() for i in range(len(ys))]
        body += [frame.path(xs, ys, "curve pale"), frame.path(xs, mean, "curve")]
    else:
        body.append(frame.path(xs, ys, "curve"))
    if len(ys) < 40:
        body += [f'<circle class="dot" cx="{px(frame.x(x))}" cy="{px(frame.y(y))}" r="2.6">'
                 f"<title>{x:g}: {y:.4g}</title></circle>" for x, y in zip(xs, ys, strict=True)]
    gaps = f" Left out as not finite: {lost}." if lost else ""
    desc = (f"{y_title} from {x_title} {xs[0]:g} to {xs[-1]:g}: first {ys[0]:.4g}, last {ys[-1]:.4g}, "
            f"lowest {ys.min():.4g}, highest {ys.max():.4g}.{gaps}")
    return svg(name, title, desc, (WIDTH, height), body)


def histograms(name: str, title: str, above: tuple[str, Sequence[float]], below: tuple[str, Sequence[float]],
               *, x_title: str, x_range: tuple[float, float]) -> str:
    """Two labelled samples over one axis, the first up and the second down, as shares of their sizes."""
    edges = np.linspace(*x_range, BINS + 1)
    samples = [(text, finite(values)) for text, values in (above, below)]
    shares = [100 * np.histogram(v, edges)[0] / max(len(v), 1) for _, v in samples]
    top = max(1.0, float(max(s.max() for s in shares))) * 1.22  # leaves a strip for the labels
    frame = Frame((40, 28, WIDTH - 14, 228), x_range, (-top, top))
    body, told = frame.y_axis("share of passages (%)", mirrored=True), []
    for (text, values), share, sign, style in zip(samples, shares, (1, -1), ("above", "below"), strict=True):
        steps = np.concatenate([[0], np.repeat(share, 2), [0]]) * sign
        edge = frame.y(sign * top) + (11 if sign > 0 else -4)
        body += [frame.path(np.repeat(edges, 2), steps, style), label(frame.box[0] + 4, edge, text, "side")]
        told.append(f"{text}: {len(values)} values")
        if len(values):
            middle = float(np.median(values))
            at, median = frame.x(middle), f"median {number(middle, 2)}"
            body += [line(at, frame.y(0), at, frame.y(sign * top * 0.86), "median"),
                     label(frame.box[2], edge, median, "side", "end")]
            told[-1] += f", {median}"
    body += [line(frame.box[0], frame.y(0), frame.box[2], frame.y(0), "axis"), *frame.x_axis(x_title)]
    return svg(name, title, "; ".join(told) + ".", (WIDTH, 268), body)


def interval_plot(name: str, title: str, rows: Sequence[tuple[str, float, float, float]], *, x_title: str,
                  reference: float | None = None, hollow: Collection[str] = ()) -> str:
    """Rows of (label, middle, low, high), top to bottom, with a dashed line at `reference`; those labelled `hollow` as rings.

    Differences, whose reference is 0, are written with their sign.
    """
    bottom = 14 + 28 * len(rows)
    ends = np.array([v for row in rows for v in row[1:]] + [reference] * (reference is not None), np.float64)
    texts = [text if len(text) < 17 else text[:15] + "…" for text, *_ in rows]
    left = 14 + 1.1 * max(map(text_width, texts))
    frame = Frame((left, 6, WIDTH - 54, bottom), room(ends), (0.0, 1.0))
    most = 4 if left < 80 else 3
    body = [line(frame.x(v), 6, frame.x(v), bottom, "rule") for v in ticks(*frame.x_range, most)]
    body += frame.x_axis(x_title, most=most)
    if reference is not None:
        body.append(line(frame.x(reference), 6, frame.x(reference), bottom, "reference"))
    for i, (text, middle, low, high) in enumerate(rows):
        y, sign = 24 + 28 * i, "+" if reference == 0 and round(middle, 3) > 0 else ""
        body += [label(left - 10, y + 4, texts[i], "name", "end"),
                 line(frame.x(low), y, frame.x(high), y, "interval"),
                 *(line(frame.x(v), y - 4, frame.x(v), y + 4, "interval") for v in (low, high)),
                 f'<circle class="point{" hollow" if text in hollow else ""}" cx="{px(frame.x(middle))}" cy="{y}" r="4.5"/>',
                 label(WIDTH - 2, y + 4, sign + number(middle), "value", "end")]
    desc = "; ".join(f"{text}: {number(m)}, interval {number(a)} to {number(b)}" for text, m, a, b in rows)
    return svg(name, title, desc + ".", (WIDTH, bottom + 42), body)


def graph_layout(n: int, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Places of `n` ≥ 1 nodes in the unit square, float64 `[n 2]`; the same for the same edges.

    Springs between all pairs, each as long as the path between its ends (Kamada and Kawai), relaxed by
    majorization from a spiral: no randomness, no step size. The longest extent is turned level.
    """
    steps = np.where(np.eye(n, dtype=bool), 0.0, np.inf)
    for a, b in edges:
        if a != b:
            steps[a, b] = steps[b, a] = 1.0
    for k in range(n):
        steps = np.minimum(steps, steps[:, k : k + 1] + steps[k])
    steps[np.isinf(steps)] = steps[np.isfinite(steps)].max() + 1.0
    weights = np.divide(1.0, steps**2, out=np.zeros_like(steps), where=steps > 0)
    inverse = np.linalg.pinv(np.diag(weights.sum(1)) - weights)
    turn = np.arange(n) * math.pi * (3 - math.sqrt(5))
    places = np.sqrt(np.arange(n) + 0.5)[:, None] * np.stack([np.cos(turn), np.sin(turn)], 1)
    for _ in range(300):
        apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
        pull = np.divide(weights * steps, apart, out=np.zeros_like(steps), where=apart > 1e-9)
        places = inverse @ ((np.diag(pull.sum(1)) - pull) @ places)
    axes = np.linalg.eigh(places.T @ places)[1][:, ::-1]
    axes = axes * np.where(axes[np.abs(axes).argmax(0), [0, 1]] < 0, -1.0, 1.0)
    places = places @ axes
    span = np.ptp(places, axis=0)
    span = np.maximum(span, 0.3 * span.max() or 1.0)  # a straight line is not blown up into noise
    return 0.5 + (places - (places.max(0) + places.min(0)) / 2) / span


def spread(places: np.ndarray, low: np.ndarray, high: np.ndarray, apart: tuple[float, float]) -> np.ndarray:
    """Pushes nodes (pixels, `[n 2]`) out of each other's ellipse of half-axes `apart`, within the box."""
    for _ in range(80):
        gap = (places[:, None] - places[None]) / np.array(apart)
        far = np.linalg.norm(gap, axis=-1, keepdims=True)
        away = np.divide(gap, far, out=np.zeros_like(gap), where=far > 1e-9)
        places = places + 0.25 * (np.clip(1 - far, 0, None) * away).sum(1) * np.array(apart)
        places = np.clip(places, low, high)
    return places


def text_width(text: str) -> float:
    """About how wide 13 px letters run; those of East Asia are twice as wide."""
    return sum(13.0 if unicodedata.east_asian_width(letter) in "WF" else 6.7 for letter in text)


def place_labels(places: np.ndarray, radii: np.ndarray, texts: Sequence[str], order: Sequence[int],
                 must: int, lines: np.ndarray) -> dict[int, tuple[float, float, str]]:
    """Where names fit without covering a node or another name: node -> (x, baseline y, anchor).

    Taken in `order`, each beside, above or below its node, where it hides least of `lines` (points on the
    edges, `[m 2]`). A name that fits nowhere is left out, unless it is among the first `must`.
    """
    taken = np.concatenate([places - radii[:, None], places + radii[:, None]], 1)  # left, top, right, bottom
    found = {}
    for turn, i in enumerate(order):
        (x, y), r, wide = places[i], radii[i] + 4, text_width(texts[i])
        spots = []
        for dx, dy in ((1, 0), (-1, 0), (0, -1), (0, 1), (0.7, -0.8), (-0.7, -0.8), (0.7, 0.8), (-0.7, 0.8)):
            at, base = x + dx * r, y + 4 + dy * (r + 6)
            left = at - wide * (0.5 - 0.5 * np.sign(dx))
            low, high = np.array([left, base - 11]), np.array([left + wide, base + 4])
            if (low < 2).any() or (high > np.array(GRAPH) - 2).any():
                continue
            covered = int(((low < taken[:, 2:]) & (high > taken[:, :2])).all(1).sum())
            if not covered or turn < must:
                hidden = int(((low < lines) & (lines < high)).all(1).sum())
                anchor = "start" if dx > 0 else "end" if dx < 0 else "middle"
                spots.append((covered, hidden, len(spots), (at, base, anchor), low, high))
        if spots:
            *_, found[i], low, high = min(spots, key=lambda spot: spot[:3])
            taken = np.vstack([taken, [*low, *high]])
    return found


def membership(node: Mapping) -> str:
    """How a node of the report's data belongs to the community: seed | small | large."""
    return "seed" if node["seed"] else "small" if node["small"] else "large"


def graph(name: str, title: str, nodes: Sequence[Mapping], edges: Sequence[Mapping]) -> str:
    """A community of the report's data, at least one node.

    Seeds are diamonds, members of the small community discs, the others rings; size tells rank.
    """
    top = max(node["rank"] for node in nodes) or 1.0
    radii = np.array([5 + 9 * math.sqrt(max(node["rank"], 0.0) / top) for node in nodes])
    low, high = np.array([70.0, 26.0]), np.array(GRAPH) - [70.0, 26.0]
    places = low + graph_layout(len(nodes), [(e["a"], e["b"]) for e in edges]) * (high - low)
    places = spread(places, low, high, (84.0, 46.0))
    body = [line(*places[e["a"]], *places[e["b"]], "similar" if e["similarity"] else "relation")
            for e in edges]
    order = sorted(range(len(nodes)), key=lambda i: (not nodes[i]["seed"], not nodes[i]["small"], -radii[i]))
    for i in reversed(order):
        (x, y), r, node = places[i], radii[i], nodes[i]
        shape = f'<circle class="{membership(node)}" cx="{px(x)}" cy="{px(y)}" r="{px(r)}"/>'
        if node["seed"]:
            corners = "L".join(f"{px(x + dx * r)} {px(y + dy * r)}" for dx, dy in
                               ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)))
            shape = f'<path class="seed" d="M{corners}Z"/>'
        told = f"{node['name']} ({node['type']}), rank {node['rank']:.3g}"
        body.append(f"<g><title>{escape(told)}</title>{shape}</g>")
    texts = [text if len(text) < 29 else text[:27] + "…" for text in (str(node["name"]) for node in nodes)]
    ends = places[np.array([(e["a"], e["b"]) for e in edges], int).reshape(-1, 2)]  # [m 2 2]
    on = np.linspace(0, 1, 33)[:, None, None]
    lines = (ends[:, 0] * (1 - on) + ends[:, 1] * on).reshape(-1, 2)
    must = sum(node["seed"] for node in nodes)
    placed = place_labels(places, radii * 1.15, texts, order, must, lines)
    body += [label(x, y, texts[i], "node" if nodes[i]["seed"] or nodes[i]["small"] else "node minor", anchor)
             for i, (x, y, anchor) in placed.items()]
    seeds = ", ".join(str(node["name"]) for node in nodes if node["seed"])
    small = sum(node["small"] for node in nodes)
    desc = (f"{len(nodes)} entities, {small} of them in the small community, joined by {len(edges)} edges. "
            f"Seeds: {seeds or 'none'}. The table below lists every entity.")
    return svg(name, title, desc, GRAPH, body)
