"""The execution graph: a job graph times its parallelism, placed on workers.

A pure planner that makes the deployment of each subtask. The scheduler decides where each subtask runs; ids come from
the caller. Called by `penstock.jobmanager` at every deployment; the result travels
in `rpc.messages.DeployTasks`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.graph.in_flight import edge_id, hashes_of
from penstock.graph.job_graph import Forward, JobEdge, JobGraph, JobVertex
from penstock.graph.restore_plan import RestorePlan
from penstock.graph.task_deployment import (
    AllToAll,
    ChannelId,
    ExecutionId,
    InputChannelSpec,
    InputSpec,
    OutputChannelSpec,
    OutputSpec,
    PeerTable,
    TaskDeployment,
)

#: (vertex id, subtask) -> worker id.
Placement = Mapping[tuple[str, int], str]


class PlanIds(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of the deployer, part of every deployment, message and permit."""

    job_id: str
    run_id: str
    generation: int
    #: Execution attempt of the subtasks.
    attempt: int
    #: The job's restart number, by which frames of an earlier deployment are recognised.
    epoch: int


class _Planner:
    """Lookups made once per plan, so that set-up is linear in subtasks for any number of channels."""

    def __init__(self, graph: JobGraph, ids: PlanIds, placement: Placement, endpoints: Mapping[str, str]) -> None:
        self.graph = graph
        self.ids = ids
        self.placement = placement
        self.endpoints = endpoints
        self.vertices = {v.id: v for v in graph.vertices}
        self.inputs: dict[str, list[tuple[int, JobEdge]]] = {v.id: [] for v in graph.vertices}
        self.outputs: dict[str, list[tuple[int, JobEdge]]] = {v.id: [] for v in graph.vertices}
        unaligned = graph.settings.unaligned_checkpoints
        #: By edge: see `InputSpec.overtakes`.
        self.overtakes = [edge_id(edge) if unaligned else "" for edge in graph.edges]
        for index, edge in enumerate(graph.edges):
            self.inputs[edge.target].append((index, edge))
            self.outputs[edge.source].append((index, edge))
        for edges in self.inputs.values():
            edges.sort(key=lambda item: item[1].input_index)

    def where(self, vertex_id: str, subtask: int) -> tuple[str, str]:
        """Return the worker of a subtask and that worker's endpoint."""
        worker = self.placement[vertex_id, subtask]
        return worker, self.endpoints[worker]

    def width(self, edge: JobEdge) -> int:
        """Return the largest number of channels of an all-to-all edge at a subtask of either end."""
        return max(self.vertices[edge.source].parallelism, self.vertices[edge.target].parallelism)

    def input(self, index: int, edge: JobEdge, subtask: int) -> InputSpec:
        """Return the part of one edge that ends at `subtask`."""
        spec = InputSpec(input_index=edge.input_index, schema=edge.schema, overtakes=self.overtakes[index])
        if not isinstance(edge.partitioner, Forward):
            return msgspec.structs.replace(
                spec, all_of=AllToAll(index, edge.source, self.ids.epoch), width=self.width(edge)
            )
        channel = ChannelId(index, subtask, subtask, self.ids.epoch)
        return msgspec.structs.replace(spec, channels=(InputChannelSpec(channel, *self.where(edge.source, subtask)),))

    def output(self, index: int, edge: JobEdge, subtask: int) -> OutputSpec:
        """Return the part of one edge that begins at `subtask`."""
        spec = OutputSpec(
            partitioner=edge.partitioner,
            schema=edge.schema,
            overtakes=self.overtakes[index],
            side_output=edge.side_output,
            combine=edge.combine,
        )
        if not isinstance(edge.partitioner, Forward):
            return msgspec.structs.replace(
                spec, all_of=AllToAll(index, edge.target, self.ids.epoch), width=self.width(edge)
            )
        channel = ChannelId(index, subtask, subtask, self.ids.epoch)
        return msgspec.structs.replace(spec, channels=(OutputChannelSpec(channel, *self.where(edge.target, subtask)),))


def plan(
    graph: JobGraph,
    *,
    ids: PlanIds,
    placement: Placement,
    endpoints: Mapping[str, str],
    restore: RestorePlan | None = None,
) -> list[TaskDeployment]:
    """Return a deployment for every subtask, in topological order.

    `placement` maps every subtask to a worker, `endpoints` every worker to its network endpoint.

    Raises:
        KeyError: a subtask without a worker, or a worker without an endpoint (a bug of the scheduler).
    """
    planner = _Planner(graph, ids, placement, endpoints)
    return [
        _deployment(planner, vertex, subtask, restore)
        for vertex in graph.vertices
        for subtask in range(vertex.parallelism)
    ]


def peers_of(graph: JobGraph, epoch: int, placement: Placement, endpoints: Mapping[str, str]) -> PeerTable | None:
    """Return the places of the subtasks that have all-to-all edges; None without such edges.

    Raises:
        KeyError: a subtask without a worker, or a worker without an endpoint (a bug of the scheduler).
    """
    wide = [edge for edge in graph.edges if not isinstance(edge.partitioner, Forward)]
    if not wide:
        return None
    numbers: dict[str, int] = {}
    places = {
        vertex.id: tuple(numbers.setdefault(placement[vertex.id, i], len(numbers)) for i in range(vertex.parallelism))
        for vertex in graph.vertices
        if any(vertex.id in (edge.source, edge.target) for edge in wide)
    }
    workers = tuple((worker_id, endpoints[worker_id]) for worker_id in numbers)
    return PeerTable(epoch=epoch, workers=workers, places=places)


def _deployment(planner: _Planner, vertex: JobVertex, subtask: int, restore: RestorePlan | None) -> TaskDeployment:
    graph, ids = planner.graph, planner.ids
    hashes = hashes_of(subtask, vertex.parallelism, graph.settings.key_groups)
    return TaskDeployment(
        job_id=ids.job_id,
        job_name=graph.name,
        run_id=ids.run_id,
        generation=ids.generation,
        execution=ExecutionId(vertex.id, subtask, ids.attempt),
        vertex_name=vertex.name,
        parallelism=vertex.parallelism,
        hash_low=hashes.low,
        hash_high=hashes.high,
        operators=vertex.operators,
        inputs=tuple(planner.input(index, edge, subtask) for index, edge in planner.inputs[vertex.id]),
        outputs=tuple(planner.output(index, edge, subtask) for index, edge in planner.outputs[vertex.id]),
        restore=restore.of(vertex.id, subtask) if restore is not None else (),
        in_flight=restore.in_flight.get((vertex.id, subtask), ()) if restore is not None else (),
        restored_checkpoint=restore.checkpoint_id if restore is not None else None,
        settings=graph.settings,
    )
