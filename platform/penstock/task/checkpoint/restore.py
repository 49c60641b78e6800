"""Building and opening a subtask's chain: operators by kind, their contexts, keyed state read back and verified.

Runs in the subtask's thread, so that a slow restore delays neither the control loop nor other subtasks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config.slot_resources import with_granted
from penstock.core import failpoints
from penstock.core.elements import MIN_TIMESTAMP, Batch
from penstock.core.keygroup import HashRange
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import FileRef, InFlightRows, OperatorStateSnapshot
from penstock.eventtime.watermarks import initial_watermark
from penstock.graph.in_flight import hashes_of
from penstock.graph.job_graph import KeyGroup
from penstock.graph.task_deployment import OperatorRestore
from penstock.network.in_flight import decode_rows
from penstock.network.output import splitter_for
from penstock.operators.operator import OperatorContext
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock.task.chain.chain import Chain, ChainLink
from penstock.task.chain.environment import LoadedState, TaskEnvironment

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.graph.task_deployment import TaskDeployment
    from penstock.network.in_flight import OvertakenRows, QueuedRows
    from penstock.network.output import ResultPartition
    from penstock.state.memory.budget import MemoryBudget
    from penstock.state.store import KeyedState

#: Name of the task's state: the combined watermark of its input.
INPUT_WATERMARK = "__input_watermark"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainServices:
    """The services of one subtask for its operators; see `OperatorContext`."""

    wake: Callable[[], None]
    run_async: Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None], str], None]
    run_waiting: Callable[[Callable[[], Any], str], Any]
    report_published: Callable[[tuple[str, ...]], None]
    #: Reads a file of the job from its store, and one of state also from a local copy.
    read_file: Callable[[FileRef], bytes]
    read_state: Callable[[FileRef], bytes]
    #: The subtask's share of the worker's managed memory.
    budget: MemoryBudget


def build_chain(deployment: TaskDeployment, environment: TaskEnvironment, outputs: list[ResultPartition]) -> Chain:
    """Return the chain, not opened."""
    links = [ChainLink(spec, environment.create_operator(spec.kind)) for spec in deployment.operators]
    return Chain(links, outputs, environment.clock)


def open_chain(
    chain: Chain,
    deployment: TaskDeployment,
    environment: TaskEnvironment,
    services: ChainServices,
    prepared: LoadedState | None = None,
) -> tuple[KeyedState, ...]:
    """Restore and open all operators, with the state that is prepared; return their keyed stores.

    Raises:
        SnapshotDamagedError: a file of the checkpoint is missing or damaged; names the file.
    """
    if deployment.restored_checkpoint is not None:
        failpoints.hit("task.during_restore", checkpoint=deployment.restored_checkpoint, subtask=deployment.execution)
    contexts: list[OperatorContext] = []
    try:
        contexts += _contexts(chain.links, deployment, environment, services, prepared)
        chain.open(contexts)
        for store in _stores_of(contexts):
            store.finish_restore(chain.links[0].capabilities.arriving)
    except BaseException:
        for store in _stores_of(contexts):
            store.close()
        raise
    finally:
        if prepared is not None:
            prepared.close()
    return _stores_of(contexts)


def keyed_contexts(
    links: Sequence[ChainLink],
    deployment: TaskDeployment,
    environment: TaskEnvironment,
    services: ChainServices,
    prepared: LoadedState,
) -> Iterator[tuple[ChainLink, OperatorContext]]:
    """Yield each operator with keyed state and its context, with the state of the deployment's checkpoint."""
    contexts = _contexts(links, deployment, environment, services, prepared)
    return (pair for pair in zip(links, contexts, strict=True) if pair[0].spec.keyed)


def _contexts(
    links: Sequence[ChainLink],
    deployment: TaskDeployment,
    environment: TaskEnvironment,
    services: ChainServices,
    prepared: LoadedState | None,
) -> Iterator[OperatorContext]:
    """Yield the context of each operator of a chain, with its keyed state."""
    restores = {restore.uid: restore for restore in deployment.restore}
    schemas = _input_schemas(deployment)
    for link in links:
        restore = restores.get(link.spec.uid, OperatorRestore(uid=link.spec.uid))
        store = None
        if link.spec.keyed:
            store = None if prepared is None else prepared.take(link.spec.uid, restore.keyed)
            if store is None:
                in_parts = prepared is None and link is links[0]
                store = open_keyed_state(_state_request(deployment, environment, services, restore, in_parts=in_parts))
        yield _context(link, deployment, environment, services, (schemas, store, restore))
        schemas = (schema_from_text(link.spec.output_schema),) if link.spec.output_schema else ()


def _stores_of(contexts: Iterable[OperatorContext]) -> tuple[KeyedState, ...]:
    return tuple(context.keyed_state for context in contexts if context.keyed_state is not None)


def restored_rows(deployment: TaskDeployment, read_file: Callable[[FileRef], bytes]) -> Iterator[tuple[int, Batch]]:
    """Yield the rows in flight that this subtask processes first, each batch with its input.

    Raises:
        SnapshotDamagedError: a file of the checkpoint is missing or damaged; names the file.
    """
    for rows in deployment.in_flight:
        for batch in decode_rows(read_file(rows.part.file), combined=rows.part.combined):
            own = _own_rows(batch.data, rows.key, deployment) if rows.key else batch.data
            if own is not None:
                yield rows.input_index, Batch(own, combined=batch.combined)


def _own_rows(batch: pa.RecordBatch, key: tuple[str, ...], deployment: TaskDeployment) -> pa.RecordBatch | None:
    """Return the rows whose key is the subtask's; None if there are none."""
    settings, subtask = deployment.settings, deployment.execution.subtask
    splitter = splitter_for(KeyGroup(key), channels=deployment.parallelism, key_groups=settings.key_groups)
    return next((rows for channel, rows in splitter.split(batch) if channel == subtask), None)


def overtaken_files(
    deployment: TaskDeployment, overtaken: OvertakenRows
) -> tuple[tuple[InFlightRows, list[QueuedRows]], ...]:
    """Return the rows of each file of overtaken rows, with its description."""
    parallelism = {output.overtakes: len(output.channels) for output in deployment.outputs}
    found = []
    for (edge, receiver, combined, at_sender), rows in overtaken.groups(deployment.execution.subtask):
        count = parallelism[edge] if at_sender else deployment.parallelism
        hashes = hashes_of(receiver, count, deployment.settings.key_groups)
        part = InFlightRows(
            edge=edge,
            receiver=receiver,
            hash_low=hashes.low,
            hash_high=hashes.high,
            at_sender=at_sender,
            combined=combined,
        )
        found.append((part, rows))
    return tuple(found)


def restored_files(deployment: TaskDeployment) -> list[FileRef]:
    """Return the files of state and of rows in flight that a subtask restores."""
    keyed = [state for restore in deployment.restore for state in restore.keyed]
    state = [segment.file for snapshot in keyed for segment in snapshot.segments]
    return state + [rows.part.file for rows in deployment.in_flight]


def keeps_keyed_state(deployment: TaskDeployment) -> bool:
    """Return whether the subtask takes a share of the managed memory."""
    return any(spec.keyed for spec in deployment.operators)


def restored_watermark(deployment: TaskDeployment) -> int:
    """Return the lowest input watermark of this chain's subtasks at the checkpoint, the one that holds for all rows.

    Subtasks whose input had ended (or was drained) are ignored.
    """
    head = deployment.operators[0].uid
    found = [
        watermark
        for restore in deployment.restore
        if restore.uid == head
        for state in restore.operator
        if state.name == INPUT_WATERMARK
        for item in state.items
        if (watermark := initial_watermark(int(item))) != MIN_TIMESTAMP
    ]
    return min(found, default=MIN_TIMESTAMP)


def input_watermark_state(deployment: TaskDeployment, watermark: int) -> tuple[OperatorStateSnapshot, ...]:
    """Return the task's state for a checkpoint."""
    if watermark == MIN_TIMESTAMP:
        return ()
    uid = deployment.operators[0].uid
    return (OperatorStateSnapshot(uid=uid, name=INPUT_WATERMARK, mode="subtask", items=(watermark,)),)


def _input_schemas(deployment: TaskDeployment) -> tuple[pa.Schema, ...]:
    inputs = sorted(deployment.inputs, key=lambda spec: spec.input_index)
    by_index = {spec.input_index: spec.schema for spec in inputs}
    return tuple(schema_from_text(text) for _, text in sorted(by_index.items()) if text)


def _state_request(
    deployment: TaskDeployment,
    environment: TaskEnvironment,
    services: ChainServices,
    restore: OperatorRestore,
    *,
    in_parts: bool,
) -> KeyedStateRequest:
    execution = deployment.execution
    place = f"{execution.vertex_id}-{execution.subtask}-{execution.attempt}"
    return KeyedStateRequest(
        uid=restore.uid,
        snapshots=restore.keyed,
        hash_range=HashRange(deployment.hash_low, deployment.hash_high),
        settings=with_granted(deployment.settings, environment.managed_memory_bytes),
        read=services.read_state,
        directory=Path(environment.state_dir) / f"{place}-{zlib.crc32(restore.uid.encode()):08x}",
        writer=f"{deployment.run_id}/{execution.vertex_id}/{execution.subtask}/{execution.attempt}",
        budget=services.budget,
        in_parts=in_parts,
        gather=environment.gather,
        limits=environment.limits,
    )


def _context(
    link: ChainLink,
    deployment: TaskDeployment,
    environment: TaskEnvironment,
    services: ChainServices,
    own: tuple[tuple[pa.Schema, ...], KeyedState | None, OperatorRestore],
) -> OperatorContext:
    schemas, store, restore = own
    return OperatorContext(
        spec=link.spec,
        job_id=deployment.job_id,
        job_name=deployment.job_name,
        run_id=deployment.run_id,
        generation=deployment.generation,
        subtask=deployment.execution.subtask,
        attempt=deployment.execution.attempt,
        parallelism=deployment.parallelism,
        hash_range=HashRange(deployment.hash_low, deployment.hash_high),
        settings=deployment.settings,
        clock=environment.clock,
        metrics=link.metrics,
        input_schemas=schemas,
        keyed_state=store,
        restored=restore.operator,
        uncommitted=restore.held,
        wake=services.wake,
        run_async=services.run_async,
        run_waiting=services.run_waiting,
        report_published=services.report_published,
        read_file=services.read_file,
        restored_checkpoint=deployment.restored_checkpoint,
        limits=environment.limits,
    )
