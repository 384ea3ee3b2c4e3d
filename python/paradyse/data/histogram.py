"""The histogram of stats as an SVG: documents as bars, the share of tokens as a line of dots."""

from __future__ import annotations

from html import escape

from .stats import Stats
from .tally import number
from .utf8 import escaped

WIDTH, HEIGHT, LEFT, TOP, FOOT = 720, 320, 60, 40, 60  # px
FIRST = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '  # line: by which it is known
         'font-family="sans-serif" font-size="11" text-anchor="middle">')


def svg_of(stats: Stats) -> str:
    bins, tokens = stats.bins, max(1, int(stats.lengths.sum()))
    most = max(one.documents for one in bins)
    step = (WIDTH - LEFT - 20) / len(bins)
    low, high = HEIGHT - FOOT, HEIGHT - FOOT - TOP
    parts = [FIRST, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{WIDTH / 2}" y="18" font-size="13">{escape(escaped(stats.name)[:80])}: '
             f"{number(len(stats.lengths), 'document')}, {number(tokens, 'token')}</text>",
             f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}">tokens of a document (bars: documents; dots: % of all tokens)</text>']
    for place, one in enumerate(bins):
        x, height = LEFT + place * step, high * one.documents / most
        share = one.tokens / tokens
        middle = x + step / 2
        parts += [f'<rect x="{x + 1:.1f}" y="{low - height:.1f}" width="{step - 2:.1f}" height="{height:.1f}" '
                  'fill="#4878a8"/>',
                  f'<text x="{middle:.1f}" y="{low - height - 4:.1f}">{one.documents}</text>',
                  f'<circle cx="{middle:.1f}" cy="{low - high * share:.1f}" r="4" fill="#d06020"/>',
                  f'<text x="{middle:.1f}" y="{low + 14}">{short(one.begin)}</text>',
                  f'<text x="{middle:.1f}" y="{low + 28}" fill="#d06020">{100 * share:.1f} %</text>']
    parts += [f'<line x1="{LEFT}" y1="{low}" x2="{WIDTH - 20}" y2="{low}" stroke="black"/>', "</svg>"]
    return "\n".join(parts) + "\n"


def short(count: int) -> str:
    """2048 as 2k: bounds of bins are powers of two."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if count >= unit:
            return f"{count // unit}{name}"
    return str(count)
