"""Lists the SQL functions that a spec may use. (docs/SPECS.md)

Each gives the same answer for the same record, today and when it is read again, on every machine. Left out are
functions of the clock, of chance and of the session (now, random, uuid, version), and those whose last digits depend
on the machine's mathematical library (exp, ln, sin, power).
"""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FUNCTIONS: dict[str, tuple[str, ...]] = {
    "conditions": _names("coalesce nullif nvl nvl2 greatest least"),
    "text": _names(
        """
        ascii bit_length btrim character_length chr concat concat_ws contains ends_with initcap left lower lpad ltrim
        octet_length overlay regexp_count regexp_like regexp_match regexp_replace repeat replace reverse right rpad
        rtrim split_part starts_with strpos substr substr_index to_hex translate upper
        """
    ),
    "bytes and hashes": _names("decode digest encode md5 sha224 sha256 sha384 sha512"),
    "numbers": _names("abs ceil floor isnan iszero round signum sqrt trunc"),
    "times": _names(
        """
        date_bin date_part date_trunc from_unixtime make_date to_char to_date to_timestamp to_timestamp_micros
        to_timestamp_millis to_timestamp_seconds to_unixtime
        """
    ),
    "nested": _names(
        """
        array_append array_concat array_distinct array_element array_has array_has_all array_has_any array_length
        array_slice array_to_string cardinality get_field make_array map_extract map_keys map_values named_struct
        string_to_array struct
        """
    ),
}
# Position of an argument that reads no column. Both sizes multiply: a record of 1 MiB would take minutes to hours.
CONSTANT_ARGUMENTS = {
    **dict.fromkeys(("regexp_count", "regexp_like", "regexp_match", "regexp_replace"), 1),
    **dict.fromkeys(("~", "~*", "!~", "!~*"), 1),
    **dict.fromkeys(("like", "not like", "ilike", "not ilike", "similar to", "not similar to"), 1),
    **dict.fromkeys(("btrim", "ltrim", "rtrim", "array_has_all"), 1),
}
ALLOWED = frozenset(name for names in FUNCTIONS.values() for name in names)
