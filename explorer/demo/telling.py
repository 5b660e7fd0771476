"""The five answers, as text: what the log says, put so that a first reader can follow."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import refold
from refold.explorer.demo import answers
from refold.explorer.demo.checks import Checks
from refold.explorer.demo.evaluator import THRESHOLD
from refold.explorer.demo.names import BANK, CONFIG, CRASH, DEPLOYED, EVALUATION, PAYING, PIPELINE, RUN, STEPS
from refold.explorer.demo.page import ID_DIGITS, Page, clock
