"""A report as one HTML page that needs nothing beside itself: no script, style or picture from elsewhere."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np

from maskzoo.audit.finding import Finding
from maskzoo.audit.report import BLIND, HIDDEN, LEAKING, USED, Report
from maskzoo.drawing.ticks import tick_step

SIDE = 640  # pixels that the longer side of the matrix may take
LARGEST = 40  # pixels that a pair may take
MARGIN = 44  # pixels for the numbers beside it
STRIP = 8  # pixels of the strips that show which rows and columns hold a leak or a blind spot

GREYS, REDS = 16, 8  # shades, a quarter of a decade and a decade apart
FAINT = 1  # entries of the palette, in the order in which a block of pairs takes the most telling one
FIRST_GREY = FAINT + 1
BLUE = FIRST_GREY + GREYS
FIRST_RED = BLUE + 1

WHITE_COLOUR, FAINT_COLOUR, BLUE_COLOUR = (255, 255, 255), (242, 232, 205), (38, 99, 235)
PALE_GREY, DARK_GREY = (206, 212, 218), (33, 37, 41)
PALE_RED, DARK_RED = (255, 140, 125), (201, 16, 30)

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2024;background:#fff;max-width:1040px;margin:2em auto;padding:0 1.2em}
h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:2em 0 .5em}code{font:.92em ui-monospace,monospace}
.verdict{font-size:1.1em;margin:.3em 0 0}.error{color:#c9101e}.warning{color:#2663eb}.sound{color:#1a7f37}
.error,.warning,.sound{font-weight:600}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.45em .9em .45em 0}
th{font-weight:600;color:#5c6570;font-size:.87em}tbody tr,dl{border-top:1px solid #dde1e6}th,td.n{white-space:nowrap}
small{color:#5c6570;font-size:.9em}dl{display:grid;grid-template-columns:8em 1fr;gap:.35em 1em;padding-top:.6em}
dt{color:#5c6570}dd{margin:0}dd ul{margin:0;padding:0;list-style:none}
svg{display:block;max-width:100%;height:auto;font:11px ui-monospace,monospace}svg image{image-rendering:pixelated}
.legend span{display:inline-block;margin-right:1.4em}.legend i{display:inline-block;width:1em;height:1em;
vertical-align:-.15em;margin-right:.4em;border:1px solid #adb5bd}#pair{min-height:1.5em}
"""

# Reads the pair under the pointer from the colours of the picture itself.
SCRIPT = """
const picture=document.querySelector('#matrix image'),info=document.querySelector('#pair'),
[step,keys,queries,meanings]=JSON.parse(document.querySelector('#meanings').textContent),source=new Image();
source.onload=()=>{const canvas=document.createElement('canvas');canvas.width=source.width;canvas.height=source.height;
const pen=canvas.getContext('2d');pen.drawImage(source,0,0);const span=(name,first,count)=>{
const last=Math.min(first+step,count)-1;return last>first?`${name}s ${first} to ${last}`:`${name} ${first}`};
picture.addEventListener('mousemove',event=>{const box=picture.getBoundingClientRect(),
x=Math.min(source.width-1,Math.max(0,Math.floor((event.clientX-box.left)/box.width*source.width))),
y=Math.min(source.height-1,Math.max(0,Math.floor((event.clientY-box.top)/box.height*source.height))),
colour=[...pen.getImageData(x,y,1,1).data].slice(0,3).join();
info.textContent=`${span('output',y*step,queries)}, ${span('input',x*step,keys)}: ${meanings[colour]}`})};
source.src=picture.getAttribute('href');
"""


def page(report: Report) -> str:
    """The whole page as text."""
    title = f"Audit of {report.rule}"
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>Audit of <code>{escape(report.rule)}</code></h1>",
        _verdict(report),
        _findings(report.findings),
        _matrix(report),
        _measuring(report),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _verdict(report: Report) -> str:
    if not report.ok:
        return f'<p class="verdict"><span class="error">Not sound: {report.verdict}.</span></p>'
    found = f' <span class="warning">{report.verdict}.</span>' if report.findings else ""
    return f'<p class="verdict"><span class="sound">Sound: nothing forbidden was found.</span>{found}</p>'


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    heads = "".join(f"<th>{head}</th>" for head in ("Kind", "Finding", "Pair", "Size", "How many", "First in"))
    rows = "".join(_row(finding) for finding in findings)
    return f"<h2>Findings</h2><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _row(finding: Finding) -> str:
    pair = "" if finding.query is None else f"output {finding.query}"
    pair += "" if finding.key is None else f"{', ' if pair else ''}input {finding.key}"
    place = "" if finding.layer is None else f"<code>{escape(finding.layer)}</code>"
    place += "" if finding.head is None else f" head {finding.head}"
    cells = [pair, f"{finding.size:.3g}", f"{finding.pairs:,}" if finding.pairs else "", place]
    return (
        f'<tr><td class="n {finding.severity}">{escape(finding.kind)}</td>'
        f"<td>{escape(finding.message)}<br><small>{escape(finding.cause)}</small></td>"
        + "".join(f'<td class="n">{cell}</td>' for cell in cells)
        + "</tr>"
    )


def _measuring(report: Report) -> str:
    rows = [
        ("method", escape(report.measured)),
        ("chance", escape(report.miss)),
        ("checked", _listed(report.checks)),
        ("skipped", _listed(report.skipped)),
    ]
    shown = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows if text)
    return f"<h2>How it was measured</h2><dl>{shown}</dl>"


def _listed(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def _matrix(report: Report) -> str:
    """The picture of all pairs with its legend; blocks of pairs where there are more than pixels."""
    if report.permission is None:
        return ""
    entries, peak = _entries(report)
    queries, keys = entries.shape
    step = -(-max(queries, keys) // SIDE)
    blocks = _blocks(entries, step)
    meanings = {",".join(map(str, colour)): text for colour, text in zip(PALETTE, _meanings(report, peak), strict=True)}
    facts = json.dumps([step, keys, queries, meanings]).replace("<", "\\u003c")
    each = f" Each point is a block of {step} × {step} pairs and shows the most telling of them." if step > 1 else ""
    title = "Influence and permission" if report.influence is not None else "Permission"
    return (
        f"<h2>{title}</h2><p>Rows are outputs, columns inputs.{each} Point at a pair to read it.</p>"
        f"{_svg(blocks, step, report.findings)}"
        f'<p id="pair"></p><p class="legend">{_legend(entries, report, peak)}</p>'
        f'<script type="application/json" id="meanings">{facts}</script><script>{SCRIPT}</script>'
    )


def _entries(report: Report) -> tuple[np.ndarray, float]:
    """The entry of the palette for each pair, uint8 [Tq, Tk], and the largest finite influence."""
    assert report.permission is not None
    cells = report.cells()
    if cells is None or report.influence is None:
        return np.where(report.permission.cpu().numpy(), FAINT, 0).astype(np.uint8), 0.0
    size = np.nan_to_num(np.abs(report.influence.double().cpu().numpy()), nan=np.inf)
    finite = size[np.isfinite(size)]
    peak = float(finite.max()) if finite.any() else 1.0
    with np.errstate(divide="ignore"):
        below = np.clip(-np.log10(size / peak), 0, 99)  # decades under the largest
    kind = cells.cpu().numpy()
    entries = np.where(kind == HIDDEN, 0, FAINT)
    entries = np.where(kind == USED, FIRST_GREY + GREYS - 1 - np.minimum(4 * below, GREYS - 1).astype(int), entries)
    entries = np.where(kind == BLIND, BLUE, entries)
    entries = np.where(kind == LEAKING, FIRST_RED + REDS - 1 - np.minimum(below, REDS - 1).astype(int), entries)
    return entries.astype(np.uint8), peak


def _blocks(entries: np.ndarray, step: int) -> np.ndarray:
    """The highest entry of every block of step × step."""
    rows, columns = (range(0, length, step) for length in entries.shape)
    return np.maximum.reduceat(np.maximum.reduceat(entries, list(rows), axis=0), list(columns), axis=1)


def _shades(pale: Sequence[int], dark: Sequence[int], count: int) -> list[tuple[int, ...]]:
    return [
        tuple(round(a + (b - a) * number / (count - 1)) for a, b in zip(pale, dark, strict=True))
        for number in range(count)
    ]


PALETTE: list[tuple[int, ...]] = [
    WHITE_COLOUR,
    FAINT_COLOUR,
    *_shades(PALE_GREY, DARK_GREY, GREYS),
    BLUE_COLOUR,
    *_shades(PALE_RED, DARK_RED, REDS),
]


def _meanings(report: Report, peak: float) -> list[str]:
    """What each entry of the palette says."""
    permitted = "permitted" if report.influence is None else "permitted, without influence"
    greys = [f"permitted and used, influence {_range(peak, GREYS - 1 - shade, 0.25, GREYS)}" for shade in range(GREYS)]
    reds = [f"leak, influence {_range(peak, REDS - 1 - shade, 1.0, REDS)}" for shade in range(REDS)]
    return ["not permitted", permitted, *greys, "blind spot: permitted, without influence", *reds]


def _range(peak: float, steps: int, decades: float, count: int) -> str:
    upper, lower = (peak * 10 ** (-decades * number) for number in (steps, steps + 1))
    if steps == 0:
        return f"{lower:.2g} or more"
    return f"below {upper:.2g}" if steps == count - 1 else f"{lower:.2g} to {upper:.2g}"


def _legend(entries: np.ndarray, report: Report, peak: float) -> str:
    shown = [(0, "not permitted"), (FAINT, _meanings(report, peak)[FAINT])]
    shown.append((FIRST_GREY + GREYS - 4, f"permitted and used (darker: more influence, at most {peak:.2g})"))
    shown += [(BLUE, "blind spot"), (FIRST_RED + REDS - 1, "leak (darker: more influence)")]
    kinds = {_kind(entry) for entry in np.unique(entries)}
    swatch = '<span><i style="background:rgb({})"></i>{}</span>'
    return "".join(
        swatch.format(",".join(map(str, PALETTE[entry])), text) for entry, text in shown if _kind(entry) in kinds
    )


def _kind(entry: int) -> int:
    """0: not permitted, 1: permitted without influence, 2: used, 3: blind spot, 4: leak."""
    return int(np.searchsorted([FAINT, FIRST_GREY, BLUE, FIRST_RED], entry, side="right"))


def _svg(blocks: np.ndarray, step: int, findings: Sequence[Finding]) -> str:
    """The picture with its axes, strips beside it for rows and columns at fault, and rings around the pairs named."""
    rows, columns = blocks.shape
    scale = min(LARGEST, max(1, SIDE // max(rows, columns)))
    width, height = columns * scale, rows * scale
    href = "data:image/png;base64," + base64.b64encode(_png(blocks)).decode()
    parts = [
        f'<svg id="matrix" width="{MARGIN + width + 2 * STRIP}" height="{MARGIN + height + 2 * STRIP}" '
        f'viewBox="{-MARGIN} {-MARGIN} {MARGIN + width + 2 * STRIP} {MARGIN + height + 2 * STRIP}">',
        f'<image href="{href}" width="{width}" height="{height}" preserveAspectRatio="none"/>',
        f'<rect width="{width}" height="{height}" fill="none" stroke="#868e96"/>',
        f'<text x="0" y="{-MARGIN + 12}">input</text><text x="{-MARGIN}" y="{-MARGIN + 26}">output</text>',
    ]
    for place in range(0, columns * step, step * tick_step(columns, 16)):
        parts.append(f'<text x="{(place / step + 0.5) * scale:g}" y="-6" text-anchor="middle">{place}</text>')
    for place in range(0, rows * step, step * tick_step(rows, 16)):
        parts.append(f'<text x="-6" y="{(place / step + 0.5) * scale + 4:g}" text-anchor="end">{place}</text>')
    for start, length, colour in _runs(blocks.max(axis=1)):
        parts.append(_mark(width + STRIP, start * scale, STRIP, max(2, length * scale), colour))
    for start, length, colour in _runs(blocks.max(axis=0)):
        parts.append(_mark(start * scale, height + STRIP, max(2, length * scale), STRIP, colour))
    for finding in findings:
        if finding.query is not None and finding.key is not None:
            x, y = ((place // step + 0.5) * scale for place in (finding.key, finding.query))
            colour = "#c9101e" if finding.severity == "error" else "#2663eb"
            ring = f'<circle cx="{x:g}" cy="{y:g}" r="{max(9, 0.75 * scale):g}" fill="none" pointer-events="none" '
            parts += [f'{ring}stroke="#fff" stroke-width="5"/>', f'{ring}stroke="{colour}" stroke-width="2"/>']
    return "".join([*parts, "</svg>"])


def _runs(worst: np.ndarray) -> list[tuple[int, int, str]]:
    """Start, length and colour of every run of rows (or columns) whose worst pair is a leak, or a blind spot."""
    fault = np.where(worst >= FIRST_RED, 2, np.where(worst == BLUE, 1, 0))
    starts = [0, *(np.flatnonzero(np.diff(fault)) + 1).tolist()]
    lengths = np.diff([*starts, len(fault)]).tolist()
    colours = {1: "#2663eb", 2: "#c9101e"}
    return [
        (start, length, colours[int(fault[start])])
        for start, length in zip(starts, lengths, strict=True)
        if fault[start]
    ]


def _mark(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}"/>'


def _png(entries: np.ndarray) -> bytes:
    """A PNG file of one pixel for each entry of the palette (PNG specification, third edition: colour type 3)."""
    rows, columns = entries.shape
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), entries], axis=1)  # each line is preceded by its filter
    colours = bytes(value for colour in PALETTE for value in colour)
    chunks = [(b"IHDR", header), (b"PLTE", colours), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
