"""Reading the caller's arrays into scratch and writing results back, whatever dtype and strides.

Addresses are plain integers and strides are in bytes, so that no array is ever expanded or copied
to be read. Half types are widened on the way in and rounded to nearest on the way out. Where one
lane holds one (batch, head) pair, or one key, rows become columns: blocks of 16 bytes of each lane
are transposed in registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fullattention.backends.numba_cpu_kernels.vector import (
    WIDTH,
    WORD,
    at_pointer,
    helper,
    lanes_at,
    llvm_scalar,
    load,
    stay_apart,
    store,
    vector_place,
)

NATIVE, FLOAT16, BFLOAT16 = 0, 1, 2
"""How numbers are stored: as they are computed with, or in one of the half types."""

AHEAD = 4096
"""Bytes; vectors that lie so far beyond the one that is read are fetched into the cache."""

_NAMES = ("native", "float16", "bfloat16")


class _Stored(NamedTuple):
    """Numbers of one kind in memory; `count` of them are one LLVM value, a vector if above 1."""

    kind: int
    scalar: types.Type
    """What they are computed with."""

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return self.scalar.bitwidth // 8 if self.kind == NATIVE else 2

    def _of(self, element: ir.Type, count: int) -> ir.Type:
        return element if count == 1 else ir.VectorType(element, count)

    @property
    def _impossible(self) -> bool:
        """Half types are computed with in float32: in float64's kernels they are dead branches."""
        return self.kind != NATIVE and self.scalar.bitwidth == 64

    def load(self, builder: Any, address: Any, count: int) -> Any:
        if self._impossible:
            return ir.Constant(self._of(llvm_scalar(self.scalar), count), ir.Undefined)
        element = {
            NATIVE: llvm_scalar(self.scalar),
            FLOAT16: ir.HalfType(),
            BFLOAT16: ir.IntType(16),
        }[self.kind]
        pointer = builder.inttoptr(address, self._of(element, count).as_pointer())
        raw = builder.load(pointer, align=1)  # a view may start anywhere
        if self.kind == NATIVE:
            return raw
        if self.kind == FLOAT16:
            return builder.fpext(raw, self._of(llvm_scalar(self.scalar), count))
        wide = self._of(ir.IntType(32), count)
        bits = builder.shl(builder.zext(raw, wide), self._bits(wide, 16))
        return builder.bitcast(bits, self._of(ir.FloatType(), count))

    def store(self, builder: Any, address: Any, value: Any, count: int) -> None:
        if self._impossible:
            return
        if self.kind == FLOAT16:
            value = builder.fptrunc(value, self._of(ir.HalfType(), count))
        elif self.kind == BFLOAT16:
            value = self._rounded_to_bfloat16(builder, value, count)
        builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)

    def _rounded_to_bfloat16(self, builder: Any, value: Any, count: int) -> Any:
        """Round to nearest, ties to even; a NaN stays one."""
        wide = self._of(ir.IntType(32), count)
        bits = builder.bitcast(value, wide)
        odd = builder.and_(builder.lshr(bits, self._bits(wide, 16)), self._bits(wide, 1))
        rounded = builder.add(builder.add(bits, self._bits(wide, 0x7FFF)), odd)
        quiet = builder.or_(bits, self._bits(wide, 0x400000))
        chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
        high = builder.lshr(chosen, self._bits(wide, 16))
        return builder.trunc(high, self._of(ir.IntType(16), count))

    def _bits(self, kind: ir.Type, value: int) -> ir.Constant:
        return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def block_of(scalar: types.Type) -> int:
    """How many numbers of one lane are transposed at a time: 16 bytes of them."""
    return int(128 // scalar.bitwidth)


def _transposed(builder: Any, parts: list[Any], block: int) -> list[Any]:
    """Transpose a square of `block` vectors within each run of `block` lanes; its own inverse."""
    lanes = parts[0].type.count
    distance = block // 2
    while distance:
        swapped = list(parts)
        for i in range(block):
            if i & distance:
                continue
            low, high = parts[i], parts[i | distance]
            for j, out in ((0, i), (distance, i | distance)):
                mask = []
                for lane in range(lanes):
                    inside = lane & distance
                    mask.append((lane ^ inside | j) + (lanes if inside else 0))
                indices = ir.Constant(ir.VectorType(ir.IntType(32), lanes), mask)
                swapped[out] = builder.shuffle_vector(low, high, indices)
        parts = swapped
        distance //= 2
    return parts


def _joined(builder: Any, pieces: list[Any]) -> Any:
    """Vectors one after the other in one vector; their number is a power of two."""
    while len(pieces) > 1:
        pieces = [
            builder.shuffle_vector(first, second, _counting(0, 2 * first.type.count))
            for first, second in zip(pieces[::2], pieces[1::2], strict=True)
        ]
    return pieces[0]


def _counting(start: int, count: int) -> ir.Constant:
    return ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(start, start + count)))


class _Moves(NamedTuple):
    """The intrinsics of one kind of numbers."""

    read: Any
    write: Any
    read_vector: Any
    write_vector: Any
    read_blocks: Any
    write_blocks: Any


def _moves(kind: int) -> _Moves:
    @intrinsic
    def read(typingctx, scratch, address):
        def codegen(context, builder, signature, args):
            return _Stored(kind, scratch.dtype).load(builder, args[1], 1)

        return scratch.dtype(scratch, types.intp), codegen

    @intrinsic
    def write(typingctx, address, value):
        def codegen(context, builder, signature, args):
            _Stored(kind, value).store(builder, args[0], args[1], 1)
            return context.get_dummy_value()

        return types.void(types.intp, value), codegen

    @intrinsic
    def read_vector(typingctx, scratch, address):
        vector = at_pointer(scratch)

        def codegen(context, builder, signature, args):
            _prefetch(builder, builder.add(args[1], WORD(AHEAD)))
            return _Stored(kind, vector.scalar).load(builder, args[1], vector.lanes)

        return vector(scratch, types.intp), codegen

    @intrinsic
    def write_vector(typingctx, address, value):
        def codegen(context, builder, signature, args):
            _Stored(kind, value.scalar).store(builder, args[0], args[1], value.lanes)
            return context.get_dummy_value()

        return types.void(types.intp, value), codegen

    @intrinsic(prefer_literal=True)
    def read_blocks(typingctx, scratch, index, table, offset, ahead, blocks):
        """Numbers at `offset` from each lane's address, lane by lane, into vectors of scratch.

        The numbers `ahead` bytes further on are fetched into the cache.
        """
        vector, block = at_pointer(scratch), block_of(scratch.dtype)

        def codegen(context, builder, signature, args):
            pointer, index, table_pointer, offset, ahead, _ = args
            stored = _Stored(kind, vector.scalar)
            places = [
                _of_lane(builder, table_pointer, lane, offset) for lane in range(vector.lanes)
            ]
            for place in places:
                _prefetch(builder, builder.add(place, ahead))
            for n in range(blocks.literal_value):
                skip = WORD(n * block * stored.size)
                rows = [stored.load(builder, builder.add(place, skip), block) for place in places]
                parts = [_joined(builder, rows[i::block]) for i in range(block)]
                for i, part in enumerate(_transposed(builder, parts, block)):
                    at = builder.add(index, WORD((n * block + i) * vector.lanes))
                    place = vector_place(builder, vector, pointer, at)
                    builder.store(part, place, align=vector.scalar.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(scratch, types.intp, table, types.intp, types.intp, blocks), codegen

    @intrinsic(prefer_literal=True)
    def write_blocks(typingctx, scratch, index, table, offset, blocks):
        """The inverse of `read_blocks`."""
        vector, block = at_pointer(scratch), block_of(scratch.dtype)

        def codegen(context, builder, signature, args):
            pointer, index, table_pointer, offset, _ = args
            stored = _Stored(kind, vector.scalar)
            places = [
                _of_lane(builder, table_pointer, lane, offset) for lane in range(vector.lanes)
            ]
            for n in range(blocks.literal_value):
                skip = WORD(n * block * stored.size)
                parts = []
                for i in range(block):
                    at = builder.add(index, WORD((n * block + i) * vector.lanes))
                    place = vector_place(builder, vector, pointer, at)
                    parts.append(builder.load(place, align=vector.scalar.bitwidth // 8))
                for i, part in enumerate(_transposed(builder, parts, block)):
                    for lane in range(i, vector.lanes, block):
                        row = builder.shuffle_vector(part, part, _counting(lane - i, block))
                        stored.store(builder, builder.add(places[lane], skip), row, block)
            return context.get_dummy_value()

        return types.void(scratch, types.intp, table, types.intp, blocks), codegen

    return _Moves(read, write, read_vector, write_vector, read_blocks, write_blocks)


def _of_lane(builder: Any, table: Any, lane: int, offset: Any) -> Any:
    return builder.add(builder.load(builder.gep(table, [WORD(lane)], inbounds=True)), offset)


def _prefetch(builder: Any, address: Any) -> None:
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, *[ir.IntType(32)] * 3])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, keep, data = (ir.IntType(32)(n) for n in (0, 3, 1))
    builder.call(function, [builder.inttoptr(address, pointer), read, keep, data])


class _Movers(NamedTuple):
    """`gather`, `scatter`, `read_rows` and `write_rows` for one kind of numbers."""

    gather: Any
    scatter: Any
    read_rows: Any
    write_rows: Any


def _movers(kind: int) -> _Movers:
    def named(function: Any) -> Any:
        """A helper with a name of its own.

        Numba tells functions of one name and signature apart by a number that it counts up, and
        two processes may have counted differently: a kernel that one of them kept on disk would
        be linked with the other's function for another kind.
        """
        function.__qualname__ = f"{function.__name__}_{_NAMES[kind]}"
        return helper(function)

    read, write, read_vector, write_vector, read_blocks, write_blocks = _moves(kind)

    @named
    def gather(p, at, width, table, offset, row_step, step, rows, count, size, block):
        stay_apart()
        lanes = lanes_at(p)
        blocked = count // block * block if step == size else 0
        doubled = blocked // (2 * block) * (2 * block)  # an address that is looked up serves twice
        for row in range(rows):
            i = at + row * width
            place = offset + row * row_step
            for j in range(0, doubled, 2 * block):
                read_blocks(p, i + j * lanes, table, place + j * size, row_step, 2)
            for j in range(doubled, blocked, block):
                read_blocks(p, i + j * lanes, table, place + j * size, row_step, 1)
            for j in range(blocked, count):
                for lane in range(lanes):
                    p[i + j * lanes + lane] = read(p, table[lane] + place + j * step)

    @named
    def scatter(p, at, width, table, offset, row_step, rows, count, size, block):
        stay_apart()
        lanes = lanes_at(p)
        blocked = count // block * block
        doubled = blocked // (2 * block) * (2 * block)
        for row in range(rows):
            i = at + row * width
            place = offset + row * row_step
            for j in range(0, doubled, 2 * block):
                write_blocks(p, i + j * lanes, table, place + j * size, 2)
            for j in range(doubled, blocked, block):
                write_blocks(p, i + j * lanes, table, place + j * size, 1)
            for j in range(blocked, count):
                for lane in range(lanes):
                    write(table[lane] + place + j * size, p[i + j * lanes + lane])

    @named
    def read_rows(p, at, width, address, row_step, step, rows, count, size):
        stay_apart()
        lanes = lanes_at(p)
        whole = count // lanes * lanes if step == size else 0
        for row in range(rows):
            i = at + row * width
            place = address + row * row_step
            for j in range(0, whole, lanes):
                store(p, i + j, read_vector(p, place + j * size))
            for j in range(whole, count):
                p[i + j] = read(p, place + j * step)

    @named
    def write_rows(p, at, width, address, row_step, rows, count, size):
        stay_apart()
        lanes = lanes_at(p)
        whole = count // lanes * lanes
        for row in range(rows):
            i = at + row * width
            place = address + row * row_step
            for j in range(0, whole, lanes):
                write_vector(place + j * size, load(p, i + j))
            for j in range(whole, count):
                write(place + j * size, p[i + j])

    return _Movers(gather, scatter, read_rows, write_rows)


_gather_native, _scatter_native, _read_native, _write_native = _movers(NATIVE)
_gather_float16, _scatter_float16, _read_float16, _write_float16 = _movers(FLOAT16)
_gather_bfloat16, _scatter_bfloat16, _read_bfloat16, _write_bfloat16 = _movers(BFLOAT16)


@helper
def gather(p, at, width, table, offset, row_step, step, rows, count, kind):
    """Read a matrix of each lane: number j of row i to p[at + i * width + j * lanes] and on.

    Lane n's rows begin at table[n] + offset, `row_step` bytes apart, their numbers `step` bytes.
    """
    size = WIDTH // lanes_at(p) if kind == NATIVE else 2
    block = 16 // (WIDTH // lanes_at(p))
    if kind == NATIVE:
        _gather_native(p, at, width, table, offset, row_step, step, rows, count, size, block)
    elif kind == FLOAT16:
        _gather_float16(p, at, width, table, offset, row_step, step, rows, count, size, block)
    else:
        _gather_bfloat16(p, at, width, table, offset, row_step, step, rows, count, size, block)


@helper
def scatter(p, at, width, table, offset, row_step, rows, count, kind):
    """Write a matrix of each lane, as `gather` reads it; the numbers of a row lie side by side."""
    size = WIDTH // lanes_at(p) if kind == NATIVE else 2
    block = 16 // (WIDTH // lanes_at(p))
    if kind == NATIVE:
        _scatter_native(p, at, width, table, offset, row_step, rows, count, size, block)
    elif kind == FLOAT16:
        _scatter_float16(p, at, width, table, offset, row_step, rows, count, size, block)
    else:
        _scatter_bfloat16(p, at, width, table, offset, row_step, rows, count, size, block)


@helper
def read_rows(p, at, width, address, row_step, step, rows, count, kind):
    """Read a matrix: number j of row i to p[at + i * width + j]."""
    size = WIDTH // lanes_at(p) if kind == NATIVE else 2
    if kind == NATIVE:
        _read_native(p, at, width, address, row_step, step, rows, count, size)
    elif kind == FLOAT16:
        _read_float16(p, at, width, address, row_step, step, rows, count, size)
    else:
        _read_bfloat16(p, at, width, address, row_step, step, rows, count, size)


@helper
def write_rows(p, at, width, address, row_step, rows, count, kind):
    """Write a matrix, as `read_rows` reads it; the numbers of a row lie side by side."""
    size = WIDTH // lanes_at(p) if kind == NATIVE else 2
    if kind == NATIVE:
        _write_native(p, at, width, address, row_step, rows, count, size)
    elif kind == FLOAT16:
        _write_float16(p, at, width, address, row_step, rows, count, size)
    else:
        _write_bfloat16(p, at, width, address, row_step, rows, count, size)


@intrinsic
def read_byte(typingctx, address):
    """The byte at an address: a boolean as NumPy and torch store it."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], ir.IntType(8).as_pointer()))

    return types.uint8(types.intp), codegen
