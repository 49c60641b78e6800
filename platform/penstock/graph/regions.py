"""Pipelined regions and slots: the unit of restart, and the number of slots that a job needs.

Every edge is pipelined, so a region is a connected part of the graph. Used by chaining (default slot sharing groups),
the scheduler (slots), fail-over (what restarts) and explain.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import msgspec

from penstock.graph.job_graph import JobGraph

Node = TypeVar("Node", bound=Hashable)


class SlotNeed(msgspec.Struct, frozen=True, kw_only=True):
    """One slot: the subtasks (vertex id, subtask index) of one sharing group that run in it together."""

    group: str
    index: int
    subtasks: tuple[tuple[str, int], ...]


def connected(nodes: Sequence[Node], edges: Iterable[tuple[Node, Node]]) -> tuple[tuple[Node, ...], ...]:
    """Return the connected parts, each in the order of `nodes`, ordered by their first node."""
    parent = {node: node for node in nodes}

    def root(node: Node) -> Node:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for left, right in edges:
        parent[root(right)] = root(left)
    parts: dict[Node, list[Node]] = {}
    for node in nodes:
        parts.setdefault(root(node), []).append(node)
    return tuple(tuple(part) for part in parts.values())


def regions(graph: JobGraph) -> tuple[tuple[str, ...], ...]:
    """Return the pipelined regions as vertex ids."""
    return connected([v.id for v in graph.vertices], [(e.source, e.target) for e in graph.edges])


def slots_of(graph: JobGraph) -> tuple[SlotNeed, ...]:
    """Return the slots the job needs: per group as many as its widest vertex; slot i holds subtask i of each."""
    groups: dict[str, list[list[tuple[str, int]]]] = {}
    for vertex in graph.vertices:
        slots = groups.setdefault(vertex.slot_sharing_group, [])
        for subtask in range(vertex.parallelism):
            if subtask == len(slots):
                slots.append([])
            slots[subtask].append((vertex.id, subtask))
    return tuple(
        SlotNeed(group=group, index=index, subtasks=tuple(subtasks))
        for group, slots in groups.items()
        for index, subtasks in enumerate(slots)
    )


def required_slots(graph: JobGraph) -> int:
    """Return how many slots the job needs: over its sharing groups, the sum of the largest parallelism."""
    widest: dict[str, int] = {}
    for vertex in graph.vertices:
        widest[vertex.slot_sharing_group] = max(widest.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return sum(widest.values())


def endless_sources(graph: JobGraph) -> tuple[str, ...]:
    """Return the names of the unbounded sources; a job without any ends when its input does."""
    heads = (vertex.operators[0] for vertex in graph.vertices if vertex.is_source)
    return tuple(head.name for head in heads if not head.config["source"]["bounded"])
