"""Pictures of pages as small grids in text, and how much two of them differ.

A picture is divided into cells of CELL pixels. Each cell is one hexadecimal digit, the square root of its mean
darkness, because most of a page is light. So a picture is a few kilobytes, a reviewer sees its shape in a diff, and a
newer font or renderer changes few cells.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from typing import cast

from playwright.sync_api import Page

CELL = 24
SHADES_APART = 1
"""Cells that differ by at most so many of 16 shades are alike."""

_GREY = """
async ([content, cell]) => {
  const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const { width, height } = picture;
  const canvas = new OffscreenCanvas(width, height).getContext("2d");
  canvas.drawImage(picture, 0, 0);
  const { data } = canvas.getImageData(0, 0, width, height);
  const rows = [];
  for (let top = 0; top < height; top += cell) {
    let row = "";
    for (let left = 0; left < width; left += cell) {
      let sum = 0, count = 0;
      for (let y = top; y < Math.min(top + cell, height); y += 2) {
        for (let x = left; x < Math.min(left + cell, width); x += 2, count += 1) {
          const at = (y * width + x) * 4;
          sum += 0.2126 * data[at] + 0.7152 * data[at + 1] + 0.0722 * data[at + 2];
        }
      }
      row += Math.round(15 * Math.sqrt(1 - sum / count / 255)).toString(16);
    }
    rows.push(row);
  }
  return rows;
}
"""


def thumbnail(page: Page, blank: Page) -> list[str]:
    """Return the visible part of a page as rows of digits. blank: an empty page that computes them; the page's own
    policy forbids it there.
    """
    content = base64.b64encode(page.screenshot()).decode()
    return cast("list[str]", blank.evaluate(_GREY, [content, CELL]))


def difference(a: Sequence[str], b: Sequence[str]) -> float:
    """Return the share of the cells with content that are unlike all cells at or next to their place in the other
    picture; 1 if the sizes differ. A cell has content if it is not of the picture's commonest shade.
    """
    if [len(row) for row in a] != [len(row) for row in b]:
        return 1.0
    return max(_unlike(a, b), _unlike(b, a))


def _unlike(a: Sequence[str], b: Sequence[str]) -> float:
    shades = [[int(each, 16) for each in row] for row in b]
    [(ground, _)] = Counter("".join(a)).most_common(1)
    unlike = 0
    for y, row in enumerate(a):
        near = shades[max(y - 1, 0) : y + 2]
        for x, digit in enumerate(row):
            shade = int(digit, 16)
            unlike += all(abs(shade - each) > SHADES_APART for line in near for each in line[max(x - 1, 0) : x + 2])
    return unlike / max(1, sum(digit != ground for row in a for digit in row))
