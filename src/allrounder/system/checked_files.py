"""Files that carry a digest of their content, which is checked whenever they are read.

JSON         a field "digest" of all other fields; in a file of JSON lines, every line has one
TOML         a first line "# digest = ..." of all other lines
safetensors  one metadata text: JSON as above, with a digest of the arrays
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from allrounder.config.toml import read_limited
from allrounder.errors import RunError
from allrounder.system.field_checks import (
    NUMBER,
    TEXT,
    Checks,
    check_fields,
    fields_of,
    list_of,
    nullable,
    optional,
    table_of,
    whole_number,
)
from allrounder.system.files import MANIFEST, write_atomically, write_text

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Fields: TypeAlias = dict[str, Any]
DIGEST_KEY = "digest"
ARRAYS_KEY = "arrays"
METADATA_KEY = "allrounder"
"""The only metadata text of a file of arrays: safetensors does not keep the order of several."""
TOML_START = f"# {DIGEST_KEY} = "
MAX_JSON_BYTES = 2**26
"""Size of a JSON file, such as the manifest of a study, or of a TOML file with a digest."""
ADVICE = "train again in another folder"
"""What to do if a file of a run is damaged and there is no copy."""
BEST = nullable(fields_of({"t": whole_number(0), "score": NUMBER}))
MANIFEST_FIELDS: Checks = {
    "files": table_of(TEXT),
    "t": whole_number(0),
    "metrics_bytes": whole_number(0),
    "fingerprint": TEXT,
    "images": whole_number(0),
    "data_digests": list_of(TEXT),
    "shape": list_of(whole_number(1, 2**16), 3, 3),
    "classes": list_of(TEXT, 1),
    "data": TEXT,
    "best": BEST,
    "sums": table_of(table_of(NUMBER)),
}
"""Fields of folders of tensors. All have "files"; readers of weights and of checkpoints say what else they
need."""
CHANGED = "it was damaged or changed after it was written"


def add_digest(fields: Mapping[str, Any]) -> Fields:
    """Return fields for JSON, and a digest of them as the last field."""
    return {**fields, DIGEST_KEY: _digest(json.dumps(fields))}


def parse_with_digest(text: str) -> Fields:
    """Parse a JSON object and return its fields without the digest; raise ValueError unless they fit."""
    fields = _parse_object(text)
    if DIGEST_KEY not in fields:
        raise ValueError("it has no digest")
    if fields.pop(DIGEST_KEY) != _digest(json.dumps(fields)):
        raise ValueError(CHANGED)
    return fields


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a JSON object with a digest."""
    write_text(path, json.dumps(add_digest(fields), indent=1) + "\n")


def read_json(path: Path, advice: str, version: int | None = None, expected: Checks | None = None) -> Fields:
    """Read what `write_json` wrote, without the digest. Raise RunError if it is damaged, if its field
    "format" is not `version`, or if its fields are not `expected`; `advice` says what
    to do without an intact copy."""
    try:
        text = read_limited(path, MAX_JSON_BYTES).decode("utf-8")
        fields = _parse_object(text)
        # Files of earlier versions have no digest.
        if version is None or fields.get("format") == version or DIGEST_KEY in fields:
            fields = parse_with_digest(text)
    except (OSError, ValueError, RecursionError) as error:
        raise damage_error(path, error, advice) from None
    if version is not None:
        check_version(path, fields.get("format"), version, advice)
    if expected is not None:
        try:
            check_fields(fields, expected)
        except ValueError as error:
            raise damage_error(path, error, advice) from None
    return fields


def read_manifest(folder: Path, *required: str, version: int | None = None) -> Fields:
    """Read the metadata of a folder of tensors, with the digests of its files under "files". The fields that
    are `required` must be there too; all others may be missing. With `version`, the format version is checked
    first."""
    expected = {
        name: check if name in ("files", *required) else optional(check)
        for name, check in MANIFEST_FIELDS.items()
    }
    return read_json(folder / MANIFEST, ADVICE, version, expected)


def _parse_object(text: str) -> Fields:
    raw: Any = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("it is not a JSON object")
    return cast(Fields, raw)


def check_version(path: Path, found: object, version: int, advice: str) -> None:
    """Raise RunError unless a file or folder has the format version that this version reads and writes."""
    if found != version:
        got = "no format version" if found is None else f"format version {found!r}"
        expected = f"expected format version {version}"
        raise RunError(
            f"{path}: got {got}, {expected}; use the version of allrounder that wrote it, or {advice}"
        )


def damage_error(path: Path, reason: object, advice: str) -> RunError:
    """Return the error for a file that cannot be read or whose digest does not fit."""
    return RunError(f"{path}: cannot be read ({reason}); restore it from a copy, or {advice}")


def parse_json_lines(path: Path, content: bytes, advice: str) -> list[Fields]:
    """Parse complete lines of JSON, each with a digest; errors name the line in `path`."""
    events: list[Fields] = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            events.append(parse_with_digest(line.decode()))
        except (ValueError, RecursionError) as error:
            raise damage_error(path, f"line {number}: {error}", advice) from None
    return events


def write_toml_text(path: Path, text: str) -> None:
    """Write TOML with a digest of the text in its first line."""
    write_text(path, f"{TOML_START}{_digest(text)}\n{text}")


def read_toml_text(path: Path, advice: str) -> str:
    """Read the text that `write_toml_text` wrote; raise RunError if it is damaged."""
    try:
        start, _, text = read_limited(path, MAX_JSON_BYTES).decode().partition("\n")
        if start != f"{TOML_START}{_digest(text)}":
            raise ValueError(CHANGED)
    except (OSError, ValueError) as error:
        raise damage_error(path, error, advice) from None
    return text


def write_arrays(path: Path, arrays: Arrays, fields: Mapping[str, Any]) -> None:
    """Write arrays and fields as one safetensors file; equal contents give equal bytes."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = json.dumps({**fields, ARRAYS_KEY: _digest_arrays(arrays)}, sort_keys=True)
    data = save(dict(arrays), metadata={METADATA_KEY: json.dumps(add_digest(json.loads(content)))})
    write_atomically(path, lambda temporary: temporary.write_bytes(data))


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], Fields]:
    """Read what `write_arrays` wrote; raise ValueError if it is damaged, OSError if it cannot be opened."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait forever
            raise ValueError("it is a folder, a pipe or a device")
        file: Any = safe_open(path, framework="numpy")
        with file as opened:
            metadata: dict[str, str] = opened.metadata() or {}
            if METADATA_KEY not in metadata:
                names = ", ".join(opened.keys())
                raise ValueError(f"it was not written by this version of allrounder; it has: {names}")
            fields = parse_with_digest(metadata[METADATA_KEY])
            arrays: dict[str, NDArray[Any]] = {key: opened.get_tensor(key) for key in list(opened.keys())}
    except (OSError, ValueError):
        raise
    except Exception as error:  # for a damaged file, safetensors and numpy raise many types
        raise ValueError(f"{error}: {CHANGED}") from None
    if fields.pop(ARRAYS_KEY, None) != _digest_arrays(arrays):
        raise ValueError(CHANGED)
    return arrays, fields


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _digest_arrays(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
