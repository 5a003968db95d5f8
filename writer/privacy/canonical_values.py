"""The bytes that stand for a value where it is hashed or encrypted, and its text where it is masked.

They depend on the value alone, not on its width, the machine or the release: text is UTF-8, bytes are themselves,
integers are decimal, booleans `true` and `false`, doubles and floats the shortest decimal that reads back as the same
double, decimals plain with all digits of their scale (`1.50`), dates `2026-11-20`, instants `2026-11-20
05:00:00.000000` in UTC. docs/PRIVACY.md has test vectors.
"""

import pyarrow as pa
import pyarrow.compute as pc


def value_bytes(values: pa.Array) -> pa.BinaryArray:
    """Return the bytes of scalars; null stays null. A union, which is a struct of its members, gives the one set."""
    kind = values.type
    if pa.types.is_binary(kind):
        return values
    if pa.types.is_struct(kind):
        return pc.coalesce(*(value_bytes(member) for member in values.flatten()))
    return value_text(values).cast(pa.binary())


def value_text(values: pa.Array) -> pa.StringArray:
    """Return the text of scalars; null stays null. Bytes have none: theirs is empty."""
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_struct(kind):
        return pc.coalesce(*(value_text(member) for member in values.flatten()))
    if pa.types.is_binary(kind):
        return pc.if_else(values.is_valid(), "", pa.scalar(None, pa.string()))
    if pa.types.is_decimal(kind):
        return _plain_decimals(values)
    if pa.types.is_floating(kind):
        return values.cast(pa.float64()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        return values.cast(pa.timestamp("us")).cast(pa.string())
    return values.cast(pa.string())


def _plain_decimals(values: pa.Decimal128Array) -> pa.StringArray:
    """Write decimals without an exponent: digits of the unscaled number, and a point among them.

    With scale 2: -0.05, 1.5, null (unscaled -5, 150, null) → "-0.05", "1.50", null.
    """
    scale = values.type.scale
    digits = pa.decimal128(38, 0)
    unscaled = pa.Array.from_buffers(digits, len(values), values.buffers(), offset=values.offset)
    if scale == 0:
        return unscaled.cast(pa.string())
    padded = pc.utf8_lpad(pc.abs(unscaled).cast(pa.string()), scale + 1, "0")
    integer_part = pc.utf8_slice_codeunits(padded, 0, -scale)
    fraction = pc.utf8_slice_codeunits(padded, -scale)
    sign = pc.if_else(pc.less(unscaled, pa.scalar(0, digits)), "-", "")
    signed_integer = pc.binary_join_element_wise(sign, integer_part, "")
    return pc.binary_join_element_wise(signed_integer, fraction, ".")
