"""The screen of a value's sources: a tree of observations, the nearest at the top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from refold.explorer.deck.frame import DeckScreen
from refold.explorer.deck.texts import HEADING, utc
from refold.explorer.queries.entity import WhyQuery
from refold.explorer.views.recorded_text import cell, visible

if TYPE_CHECKING:
    from refold.agents.log import AgentLog

RUN_MAX = 16
Link = Mapping[str, Any]


class WhyScreen(DeckScreen):
    """The sources of a value.

    Args:
        value: The value, as TYPE/ID.FIELD.
        at: The cut at which the value is looked at.
    """

    about = (
        "Why: the observations that led to a value. Below each are those that it was caused by.\n"
        "Each says what it observed, when, and which agent, run and step it came from."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "down", "down", show=False), Binding("k", "up", "up", show=False),
        Binding("o", "run", "run"), Binding("e", "entity", "entity"),
    ]  # fmt: skip

    def __init__(self, value: str, at: str) -> None:
        super().__init__()
        self._value, self._at = value, at

    @property
    def name_shown(self) -> str:
        """The name of the screen, with the value."""
        return f"Why {self._value}"

    def compose_answer(self) -> ComposeResult:
        """Yield the tree."""
        yield Tree[Link | None](Text(visible(self._value), HEADING))

    async def load(self) -> str:
        """Ask `refold why`, and show its answer."""
        query = WhyQuery(self._value, self._at)

        def asked(log: AgentLog) -> list[dict[str, Any]]:
            return query.answer(log)

        chain = await self.ask(asked)
        self.queries, self.cut_text = [query], self._at
        tree: Tree[Link | None] = self.query_one(Tree)
        tree.clear()
        self._add(tree.root, chain)
        tree.root.expand_all()
        tree.focus()
        return ""

    def _add(self, root: TreeNode[Link | None], chain: Sequence[Link]) -> None:
        """Add each observation once, below the first one that it caused."""
        by_id = {link["observation"]: link for link in chain}
        added: set[str] = set()
        left = [(root, link["observation"]) for link in reversed(chain) if link["depth"] == 0]
        while left:
            above, name = left.pop()
            link = by_id.get(name)
            if link is None or name in added:
                above.add_leaf(Text(f"{name[:12]}  {'as above' if name in added else 'further back'}", "dim"))
                continue
            added.add(name)
            node = above.add(link_text(link), data=link)
            for line in patch_lines(link):
                node.add_leaf(line, data=link)
            left += [(node, cause) for cause in reversed(link["causes"])]

    def action_down(self) -> None:
        """Move the cursor down."""
        self.query_one(Tree).action_cursor_down()

    def action_up(self) -> None:
        """Move the cursor up."""
        self.query_one(Tree).action_cursor_up()

    @property
    def _link(self) -> Link | None:
        """The observation under the cursor. On the value itself, the nearest observation."""
        tree: Tree[Link | None] = self.query_one(Tree)
        node = tree.cursor_node
        if (node is None or node.data is None) and tree.root.children:
            node = tree.root.children[0]
        return None if node is None else node.data

    def action_run(self) -> None:
        """Open the run that recorded the observation, at its step."""
        link = self._link
        source = {} if link is None else link["source"] or {}
        if source.get("run"):
            self.deck.open_run(source["run"], _number(source["step"]), self._at)
        else:
            self.say_problem("no run observed it")

    def action_entity(self) -> None:
        """Open the entity that was observed."""
        link = self._link
        if link is not None and link["entity"]:
            self.deck.open_entity(link["entity"], self._at)


def link_text(link: Link) -> Text:
    """Format an observation as `tool_config/acme  by deployer  2026-11-21 03:12:00`."""
    if link["entity"] is None:
        return Text(f"{link['observation'][:12]}  not in this log before the point", "dim")
    source = link["source"]
    by = " ".join(
        part for part in (
            source["agent"] or "-", f"run {_short(source['run'])}" if source["run"] else "",
            f"step {source['step']}" if source["step"] else "", f"tool {source['tool']}" if source["tool"] else "",
        ) if part
    )  # fmt: skip
    return (
        Text(visible(link["entity"]), HEADING)
        .append(f"  by {visible(by)}  ")
        .append(f"{utc(link['recorded_at'])[:19]}", "dim")
    )


def patch_lines(link: Link) -> list[Text]:
    """Return what an observation changes in its entity."""
    found = [
        Text(f"{visible(name)} = ").append(cell(value, 400), "green") for name, value in (link["patch"] or {}).items()
    ]
    found += [Text(f"cleared {visible(name)}", "red") for name in link["cleared"] or ()]
    if link["link"] is not None:
        found.append(Text(f"{link['kind']} {visible(link['link']['relation'])} {visible(link['link']['target'])}"))
    return found


def _short(run: str) -> str:
    """Return a run's id, shortened if it is long."""
    return run if len(run) <= RUN_MAX else f"{run[:RUN_MAX]}…"


def _number(step: Any) -> int:
    return int(step) if str(step).isdecimal() else 0
