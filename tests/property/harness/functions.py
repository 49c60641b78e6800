"""Operators of user functions, as the API compiles them."""

from tests.property.harness.job import Input, Job, spec_of

from penstock.api.building.flow import Flow
from penstock.api.functions.process_functions import compile_plain_process, compile_process, compile_two_input
from penstock.api.streams import DataStream, KeyedStream
from penstock.core.schema import schema_to_text


def function_job(function, schema, models, *where, **more):
    """Return a job of a function by key `k` (text); every key has a model."""
    return Job(spec_of_function(function, schema), (Input(schema, ("k",)),), list(models), models, *where, **more)


def spec_of_function(function, schema, key=("k",)):
    """Return what a job graph says of a function by key, or of one without a key."""
    made = (compile_process if key else compile_plain_process)(function, None, {}, stream=_stream(schema, key))
    return _spec(made.spec.kind, made)


def spec_of_two_inputs(form, function, inputs):
    """Return what a job graph says of a function of two streams."""
    made = compile_two_input(form, function, None, {}, tuple(_stream(one.schema, one.key) for one in inputs))
    return _spec(made.spec.kind, made)


def _stream(schema, key):
    flow = Flow(upstreams=(), schema=schema)
    return KeyedStream(None, flow, key) if key else DataStream(None, flow)


def _spec(kind, made):
    return spec_of(
        kind,
        made.spec.config,
        payload=made.spec.payload,
        output_schema=schema_to_text(made.schema),
        operator_states=made.spec.operator_states,
    )
