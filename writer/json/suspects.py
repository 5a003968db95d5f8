"""Finds the values of a refused block that Arrow does not take, without it: each in less than a microsecond or two."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from headrace.writer.decoding.block import Mask
from headrace.writer.json.members import ERRORS
from headrace.writer.json.typed_decoder import path_decoder, typed_decoder
from headrace.writer.json.value_reader import ObjectMembers

# What Arrow says of a value: the column, and what is wrong with it.
_OTHER_KIND = re.compile(r"Column\(/v/(.*)\) changed from ")
_TWICE = re.compile(r"Column\(/v/(?:.*/)?(.*)\) was specified twice")
_CONVERSION = re.compile("^Failed to convert JSON to ([^,]+), ")
_SYNTAX = "JSON parse error"
_skip: Callable[[bytes], Any] = msgspec.json.Decoder(msgspec.Raw).decode


def mask_unsound(values: Sequence[bytes], is_sound: Callable[[bytes], object]) -> Mask:
    """Return which values are not sound: for which a function returns False, or raises ValueError."""
    is_unsound = np.zeros(len(values), dtype=bool)
    for position, value in enumerate(values):
        try:
            if is_sound(value) is False:
                is_unsound[position] = True
        except ERRORS:
            is_unsound[position] = True
    return is_unsound


class SuspectFinder:
    """Looks for what Arrow says of a block: first for that alone, and with the judge at last."""

    def __init__(self, root: ObjectMembers, takes: Callable[[bytes], bool]) -> None:
        """`takes`: the judge, who tells whether a value is a row."""
        self._takes = takes
        self._decode_typed = lru_cache(maxsize=64)(lambda kind: typed_decoder(root, kind))
        self._path_decoder = lru_cache(maxsize=64)(lambda path: path_decoder(root, path))

    def find(self, values: Sequence[bytes], refusal: str) -> Mask:
        """Return the values that are to be read one by one. `refusal`: in Arrow's words."""
        is_suspect = self._find_by_message(values, refusal)
        if is_suspect is None or not is_suspect.any():
            kind = _CONVERSION.search(refusal)
            is_suspect = mask_unsound(values, self._decode_typed(kind and kind[1]))
        if not is_suspect.any():
            is_suspect = mask_unsound(values, self._takes)
        return is_suspect

    def _find_by_message(self, values: Sequence[bytes], refusal: str) -> Mask | None:
        twice = _TWICE.search(refusal)
        if twice is not None:
            name = b'"%b"' % twice[1].encode()
            return mask_unsound(values, lambda value: value.count(name) < 2)  # noqa: PLR2004 - twice
        kind = _OTHER_KIND.search(refusal)
        decode = None if kind is None else self._path_decoder(tuple(kind[1].split("/")))
        if decode is not None:
            return mask_unsound(values, decode)
        if _SYNTAX in refusal:
            return mask_unsound(values, _skip)
        return None
