"""Integer arithmetic of `select` and `filter` in NumPy, several times as fast as in Polars; called by `project`.

Polars divides row by row; NumPy divides by a constant with a multiplication and a shift, and computes a remainder by a
power of two with a mask. Supported expressions consist of 64-bit integer columns and literals with `+ - *`, `//` and
`%` by a positive literal, comparisons and `& | ~`, or multiply such a number by a decimal literal. Polars evaluates all
other expressions, and each batch with nulls in such a column. Results are equal to those of Polars, also for overflow
and negative numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.kernels.keys.key_columns import fixed_to_arrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    #: Integers or booleans of a batch's rows.
    Values: TypeAlias = NDArray[Any]
    #: A function from the columns of a batch, by name, to the expression's values.
    Evaluate: TypeAlias = Callable[[Mapping[str, Values]], Values]
    #: With a flag: whether the array belongs to the step, so that the next step may overwrite it.
    Step: TypeAlias = tuple[Evaluate, bool]

_INT64 = range(-(1 << 63), 1 << 63)
_ARITHMETIC: dict[str, Any] = {"Plus": np.add, "Minus": np.subtract, "Multiply": np.multiply}
_DIVISIONS = {"FloorDivide", "Modulus"}
_COMPARISONS: dict[str, Any] = {
    "Eq": np.equal,
    "NotEq": np.not_equal,
    "Lt": np.less,
    "LtEq": np.less_equal,
    "Gt": np.greater,
    "GtEq": np.greater_equal,
}
_LOGIC: dict[str, Any] = {"And": np.logical_and, "Or": np.logical_or}

#: The precision of Polars' decimal results, for any operands.
_DIGITS = 38


class _UnsupportedError(Exception):
    """The expression has an unsupported part, or the batch an unsupported number: Polars evaluates it."""


class Computed(NamedTuple):
    """An expression's values (int64 or bool); for decimals the unscaled integers and the scale."""

    values: Values
    scale: int | None


class _Expression(NamedTuple):
    integers: Evaluate
    #: The factor: the unscaled integer of a decimal, and its scale.
    factor: tuple[int, int] | None

    def of(self, columns: Mapping[str, Values]) -> Computed:
        """Return the values. Raises _OtherwiseError: a product has more than 64 bits."""
        values = self.integers(columns)
        if self.factor is None:
            return Computed(values, None)
        digits, scale = self.factor
        if len(values) and not all(int(end) * digits in _INT64 for end in (values.min(), values.max())):
            raise _UnsupportedError
        return Computed(values * np.int64(digits), scale)


class IntegerExpressions:
    """Computes expressions from 64-bit integer columns without nulls."""

    def __init__(self, roots: Sequence[str], expressions: Sequence[_Expression]) -> None:
        self._roots = roots
        self._expressions = expressions

    def of(self, batch: pa.RecordBatch) -> list[Computed] | None:
        """Return every expression's values.

        None: a column of the batch has a null, or a number is too large.
        """
        arrays = [batch.column(name) for name in self._roots]
        if any(array.null_count for array in arrays):
            return None
        columns = {name: array.to_numpy() for name, array in zip(self._roots, arrays, strict=True)}
        try:
            return [expression.of(columns) for expression in self._expressions]
        except _UnsupportedError:
            return None


def compile_integers(expressions: Sequence[pl.Expr], rows: pa.Schema) -> IntegerExpressions | None:
    """Return an evaluator of all the expressions; None: Polars evaluates them."""
    integers = {field.name for field in rows if pa.types.is_int64(field.type)}
    roots = {name for expression in expressions for name in expression.meta.root_names()}
    if not roots or not integers.issuperset(roots):
        return None
    try:
        return IntegerExpressions(sorted(roots), [_compiled(expression) for expression in expressions])
    except _UnsupportedError:
        return None


def to_arrow(computed: Computed) -> pa.Array:
    """Return values as an Arrow array without nulls; integers are not copied."""
    values, scale = computed
    plain = pa.int64() if values.dtype == np.int64 else pa.bool_()
    return fixed_to_arrow(values, None, plain if scale is None else pa.decimal128(_DIGITS, scale))


def _compiled(expression: pl.Expr) -> _Expression:
    try:
        tree = json.loads(expression.meta.serialize(format="json"))
    except pl.exceptions.PolarsError as error:  # for example an expression with a Python function
        raise _UnsupportedError from error
    while "Alias" in tree:
        tree = tree["Alias"][0]
    match tree:
        case {"BinaryExpr": {"left": left, "op": "Multiply", "right": right}}:
            for factor, integers in ((_decimal(left), right), (_decimal(right), left)):
                if factor is not None:
                    return _Expression(_integer(integers)[0], factor)
    evaluate, _ = _boolean(tree) if _is_boolean(tree) else _integer(tree)
    return _Expression(evaluate, None)


def _decimal(tree: dict[str, Any]) -> tuple[int, int] | None:
    """Return the unscaled integer and the scale of a decimal literal; None: it is none."""
    match tree:
        case {"Literal": {"Scalar": {"Decimal": [int(digits), int(_), int(scale)]}}} if digits in _INT64:
            return digits, scale
    return None


def _is_boolean(tree: dict[str, Any]) -> bool:
    if "Function" in tree:
        return True
    return "BinaryExpr" in tree and tree["BinaryExpr"]["op"] in {*_COMPARISONS, *_LOGIC}


def _boolean(tree: dict[str, Any]) -> Step:
    """Compile comparisons of integers, and `& | ~` of those."""
    match tree:
        case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
            inverted, _ = _boolean(inner)
            return (lambda columns: np.logical_not(values := inverted(columns), out=values)), True
        case {"BinaryExpr": {"left": left, "op": op, "right": right}} if op in _LOGIC:
            return _binary(_LOGIC[op], _boolean(left), _boolean(right))
        case {"BinaryExpr": {"left": left, "op": op, "right": right}} if op in _COMPARISONS:
            (first, _), (second, _) = _sides(left, right)
            return _binary(_COMPARISONS[op], (first, False), (second, False))  # the result does not fit 64-bit integers
    raise _UnsupportedError


def _integer(tree: dict[str, Any]) -> Step:
    """Compile columns, and `+ - * // %` of integers."""
    match tree:
        case {"Column": str(name)}:
            return (lambda columns: columns[name]), False
        case {"BinaryExpr": {"left": left, "op": op, "right": right}} if op in _ARITHMETIC:
            return _binary(_ARITHMETIC[op], *_sides(left, right))
        case {"BinaryExpr": {"left": left, "op": op, "right": right}} if op in _DIVISIONS:
            divisor = _literal(right)
            if divisor is None or divisor <= 0:
                raise _UnsupportedError
            return _divided(op, _integer(left), np.int64(divisor)), True
    raise _UnsupportedError


def _sides(left: dict[str, Any], right: dict[str, Any]) -> tuple[Step, Step]:
    """Compile two operands, of which one may be a literal."""
    numbers = (_literal(left), _literal(right))
    if None not in numbers:
        raise _UnsupportedError  # a constant has no array
    first, second = (
        _integer(side) if number is None else _constant(number)
        for side, number in zip((left, right), numbers, strict=True)
    )
    return first, second


def _literal(tree: dict[str, Any]) -> int | None:
    match tree:
        case {"Literal": {"Dyn": {"Int": int(number)}}} | {"Literal": {"Scalar": {"Int64": int(number)}}}:
            if number not in _INT64:
                raise _UnsupportedError
            return number
    return None


def _constant(number: int) -> Step:
    value: Any = np.int64(number)
    return (lambda _columns: value), False


def _binary(function: Any, left: Step, right: Step) -> Step:
    """Compile an operation that overwrites an operand it owns: memory in the CPU cache is faster than new memory."""
    (first_of, first_own), (second_of, second_own) = left, right

    def values(columns: Mapping[str, Values]) -> Values:
        first, second = first_of(columns), second_of(columns)
        result: Values = function(first, second, out=first if first_own else second if second_own else None)
        return result

    return values, True


def _divided(op: str, dividend: Step, divisor: np.int64) -> Evaluate:
    """Compile a division that rounds down, so that a remainder is never negative."""
    of, own = dividend

    def whole(columns: Mapping[str, Values]) -> Values:
        values = of(columns)
        return np.floor_divide(values, divisor, out=values if own else None)

    def masked(columns: Mapping[str, Values]) -> Values:
        values = of(columns)
        return np.bitwise_and(values, divisor - np.int64(1), out=values if own else None)

    def remainder(columns: Mapping[str, Values]) -> Values:
        values = of(columns)
        multiple = np.floor_divide(values, divisor)
        multiple *= divisor
        return np.subtract(values, multiple, out=multiple)

    if op == "FloorDivide":
        return whole
    return masked if divisor & (divisor - 1) == 0 else remainder
