"""The HTML page: complete in itself, and its picture shows each pair for what it is."""

import base64
import dataclasses
import json
import re
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from torch import Tensor

from maskzoo.audit.finding import Finding
from maskzoo.audit.page import page
from maskzoo.audit.report import Report

VOID = {"meta", "image", "rect", "circle", "br"}


class Page(HTMLParser):
    """The text of a page, its elements, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def finding(kind: str, query: int, key: int, severity: str = "error") -> Finding:
    return Finding(
        kind=kind,
        message=f"about output {query} and input {key}",
        cause="<careless> & late",
        size=0.5,
        pairs=1200,
        query=query,
        key=key,
        layer="blocks.0.<b>",
        head=3,
        severity=severity,  # type: ignore[arg-type]
    )


def report(influence: Tensor | None, permission: Tensor | None, *findings: Finding) -> Report:
    return Report(
        findings=findings,
        influence=influence,
        permission=permission,
        rule="causal & <mine>",
        method="exact",
        checks=("in float64", "in training mode"),
        skipped=("bfloat16: <not here>",),
        passes=7,
        seconds=1.5,
        miss="one in a <million>",
    )


def causal(length: int) -> tuple[Tensor, Tensor]:
    permission = torch.ones(length, length, dtype=torch.bool).tril()
    return permission.double(), permission


def pixels(text: str) -> np.ndarray:
    """The picture in the page as colours [rows, columns, 3], read by the rules of PNG."""
    file = base64.b64decode(re.findall(r'href="data:image/png;base64,([^"]+)"', text)[0])
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, place = {}, 8
    while place < len(file):
        (length,) = struct.unpack_from(">I", file, place)
        name, body = file[place + 4 : place + 8], file[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", file, place + 8 + length)[0] == zlib.crc32(name + body)
        chunks[name], place = body, place + 12 + length
    columns, rows = struct.unpack_from(">II", chunks[b"IHDR"])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(rows, columns + 1)
    assert not lines[:, 0].any()
    return np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)[lines[:, 1:]]


def is_red(colour: np.ndarray) -> np.ndarray:
    return colour[..., 0] > colour[..., 1:].max(-1).astype(int) + 80


def is_blue(colour: np.ndarray) -> np.ndarray:
    return colour[..., 2] > colour[..., :2].max(-1).astype(int) + 80


def is_grey(colour: np.ndarray) -> np.ndarray:
    return (np.ptp(colour.astype(int), axis=-1) < 20) & (colour.max(-1) < 250)


def is_white(colour: np.ndarray) -> np.ndarray:
    return (colour == 255).all(-1)


def test_a_page_is_whole_and_needs_nothing_beside_itself() -> None:
    text = page(report(*causal(5), finding("leak", 1, 3), finding("blind spot", 4, 0, "warning")))
    parsed = Page(text)
    assert parsed.open == []
    names = {name for _, attributes in parsed.elements for name in attributes}
    assert "src" not in names
    links = [attributes["href"] or "" for _, attributes in parsed.elements if "href" in attributes]
    assert [link.split(",")[0] for link in links] == ["data:image/png;base64"]
    assert not re.search(r"https?:|url\(|@import|<link", text)


def test_it_says_what_was_found_and_how() -> None:
    shown = Page(page(report(*causal(5), finding("leak", 1, 3), finding("blind spot", 4, 0, "warning")))).text
    for part in (
        "Audit of causal & <mine>",
        "1 error, 1 warning",
        "about output 1 and input 3",
        "<careless> & late",
        "output 1, input 3",
        "0.5",
        "1,200",
        "blocks.0.<b> head 3",
        "exact: 7 runs of the model in 1.50 s",
        "in training mode",
        "bfloat16: <not here>",
        "one in a <million>",
    ):
        assert part in shown


@pytest.mark.parametrize("warned", [False, True])
def test_a_sound_model_is_called_sound(warned: bool) -> None:
    findings = [finding("blind spot", 4, 0, "warning")] if warned else []
    shown = Page(page(report(*causal(5), *findings))).text
    assert "Sound" in shown and "Not sound" not in shown
    assert ("1 warning" in shown) == warned
    assert ("Findings" in shown) == warned


@pytest.mark.parametrize("length", [4, 24, 300])
def test_each_pair_has_its_colour(length: int) -> None:
    influence, permission = causal(length)
    influence[1, 3] = 1e-9  # a leak however small
    influence[length - 1, 0] = 0
    colours = pixels(page(report(influence, permission, finding("blind spot", length - 1, 0, "warning"))))
    assert colours.shape[:2] == (length, length)
    assert np.argwhere(is_red(colours)).tolist() == [[1, 3]]
    assert np.argwhere(is_blue(colours)).tolist() == [[length - 1, 0]]
    assert is_grey(colours).sum() == permission.sum() - 1
    assert is_white(colours).sum() == (~permission).sum() - 1


def test_more_influence_is_darker() -> None:
    influence, permission = causal(6)
    influence[5, :5] = torch.tensor([1.0, 0.3, 0.1, 1e-2, 1e-6], dtype=torch.float64)
    levels = pixels(page(report(influence, permission)))[5, :5].astype(int).sum(-1).tolist()
    assert levels == sorted(set(levels))


def test_a_long_matrix_is_drawn_in_blocks_that_lose_no_leak() -> None:
    influence, permission = causal(1000)
    influence[101, 851] = 1e-3
    influence[400, 10] = 0
    text = page(report(influence, permission, finding("leak", 101, 851), finding("blind spot", 400, 10, "warning")))
    colours = pixels(text)
    assert colours.shape[:2] == (500, 500)
    assert np.argwhere(is_red(colours)).tolist() == [[50, 425]]
    assert np.argwhere(is_blue(colours)).tolist() == [[200, 5]]
    assert len(text) < 100_000
    marks = [mark for mark in Page(text).all("rect") if mark["fill"] != "none"]
    assert sorted(str(mark["fill"]) for mark in marks) == 2 * ["#2663eb"] + 2 * ["#c9101e"]
    rings = {(ring["cx"], ring["cy"]) for ring in Page(text).all("circle")}
    assert rings == {("425.5", "50.5"), ("5.5", "200.5")}


def test_every_colour_of_the_picture_is_explained() -> None:
    influence, permission = causal(8)
    influence *= 10 ** -torch.linspace(0, 6, 64, dtype=torch.float64).view(8, 8)
    influence[0, 7] = 0.02
    text = page(report(influence, permission, finding("leak", 0, 7)))
    facts = re.findall(r'<script type="application/json" id="meanings">(.*?)</script>', text)
    step, keys, queries, meanings = json.loads(facts[0])
    assert (step, keys, queries) == (1, 8, 8)
    colours = pixels(text)
    assert {",".join(map(str, colour)) for colour in colours.reshape(-1, 3).tolist()} <= set(meanings)
    assert meanings[",".join(map(str, colours[0, 7].tolist()))] == "leak, influence 0.01 to 0.1"
    assert meanings[",".join(map(str, colours[0, 0].tolist()))] == "permitted and used, influence 0.56 or more"


def test_permission_alone_is_drawn_where_influence_was_not_measured() -> None:
    _, permission = causal(5)
    text = page(report(None, permission, finding("leak", 1, 3)))
    colours = pixels(text)
    assert is_white(colours).sum() == (~permission).sum()
    assert not is_red(colours).any()
    assert len(Page(text).all("circle")) == 2
    assert "Permission" in Page(text).text and "Influence and" not in Page(text).text


def test_without_matrices_there_is_no_picture() -> None:
    parsed = Page(page(report(None, None, finding("leak", 1, 3))))
    assert parsed.all("svg") == []
    assert "about output 1 and input 3" in parsed.text


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (30, 7)])
def test_matrices_that_are_not_square(shape: tuple[int, int]) -> None:
    text = page(report(torch.rand(shape).double() + 0.1, torch.ones(shape).bool()))
    assert pixels(text).shape[:2] == shape


@pytest.mark.parametrize("odd", [float("inf"), float("nan")])
def test_influence_that_is_no_number_is_drawn(odd: float) -> None:
    influence, permission = causal(4)
    influence[0, 1] = influence[2, 1] = odd
    colours = pixels(page(report(influence, permission)))
    assert np.argwhere(is_red(colours)).tolist() == [[0, 1]]
    assert is_grey(colours)[2, 1]


def test_no_influence_at_all() -> None:
    influence, permission = causal(4)
    plain = report(torch.zeros_like(influence), permission)
    assert not is_grey(pixels(page(plain))).any()
    blind = dataclasses.replace(plain, findings=(finding("blind spot", 0, 0, "warning"),))
    assert is_blue(pixels(page(blind))).sum() == permission.sum()
