"""Decodes values to Arrow rows: natively by block, one by one if that is refused. A bad value fails alone."""

import numpy as np
import pyarrow as pa

from headrace.writer.decoding.block import (
    BlockDecoder,
    BlockRefused,
    DecodedBlock,
    DecoderUnresponsive,
    PartRefused,
    SingleDecoder,
    concat_blocks,
    drop_bad_rows,
    merge_blocks,
)

# Arrow's binary arrays end at 2 GiB; half of it leaves room for the nonces.
BLOCK_BYTES_MAX = 2**30
# So few records are decoded one by one: a native call costs as much.
SINGLY = 16
# How often the rest of a refused block is decoded at once without its suspects.
_ROUNDS = 3


def decode(values: pa.Array, native: BlockDecoder | None, single: SingleDecoder) -> DecodedBlock:
    """Decode a block of values that carry the same header. Bad values fail alone; the others keep their order.

    `values`: binary array without nulls, every value with its header. `native` None: the schema is not native.
    Of a block that is refused, the suspects are decoded one by one and the others at once; where that is refused too,
    it is halved until the culprits stand alone.
    """
    if native is None:
        return single(values)
    if len(values) <= SINGLY or values.nbytes > BLOCK_BYTES_MAX:
        return _decode_by_halves(values, native, single)
    decoded = _decode_natively(values, native, single)
    if isinstance(decoded, DecodedBlock):
        return decoded
    return _decode_without_suspects(values, native, single, decoded)


def _decode_without_suspects(
    values: pa.Array, native: BlockDecoder, single: SingleDecoder, refusal: BlockRefused
) -> DecodedBlock:
    """Decode a refused block: the suspects one by one, the others at once."""
    sound_positions = np.arange(len(values))
    sound_values = values
    suspect_positions = list[np.ndarray]()
    sound: DecodedBlock | None = None
    for _ in range(_ROUNDS):
        is_suspect = refusal.is_suspect if isinstance(refusal, PartRefused) else None
        if is_suspect is None:
            is_suspect = native.find_suspects(sound_values, refusal)
        if is_suspect is None or not is_suspect.any():
            break
        suspect_positions.append(sound_positions[is_suspect])
        sound_positions = sound_positions[~is_suspect]
        if isinstance(refusal, PartRefused):
            sound = DecodedBlock(refusal.rows, pa.arange(0, len(sound_positions)), {}, refusal.unfit)
            break
        sound_values = values.take(pa.array(sound_positions))
        outcome = _decode_natively(sound_values, native, single)
        if isinstance(outcome, DecodedBlock):
            sound = outcome
            break
        refusal = outcome
    if sound is None:
        sound = _decode_by_halves(sound_values, native, single, is_refused=True)
    if not suspect_positions:
        return sound
    suspects = pa.array(np.sort(np.concatenate(suspect_positions)))
    return merge_blocks([(pa.array(sound_positions), sound), (suspects, single(values.take(suspects)))])


def _decode_by_halves(
    values: pa.Array, native: BlockDecoder, single: SingleDecoder, *, is_refused: bool = False
) -> DecodedBlock:
    """Decode the values in blocks as large as are accepted. `is_refused`: all of them at once are not."""
    blocks: list[tuple[int, DecodedBlock]] = []
    pending = [(0, len(values))]
    if is_refused:
        middle = len(values) // 2
        pending = [(middle, len(values)), (0, middle)]
    while pending:
        start, stop = pending.pop()
        part = values.slice(start, stop - start)
        is_small = stop - start <= SINGLY
        decoded: DecodedBlock | None = None
        if part.nbytes <= BLOCK_BYTES_MAX and not (is_small and blocks):
            outcome = _decode_natively(part, native, single)
            decoded = outcome if isinstance(outcome, DecodedBlock) else None
        if decoded is None and is_small:
            decoded = single(part)
        if decoded is not None:
            blocks.append((start, decoded))
        else:
            middle = (start + stop) // 2
            pending += [(middle, stop), (start, middle)]
    return concat_blocks(blocks)


def _decode_natively(values: pa.Array, native: BlockDecoder, single: SingleDecoder) -> DecodedBlock | BlockRefused:
    """Decode the values at once, or return why they are refused."""
    try:
        rows, reasons = native(values)
    except DecoderUnresponsive:
        return single(values)
    except BlockRefused as refusal:
        return refusal
    return drop_bad_rows(rows, reasons, native.take_unfit())
