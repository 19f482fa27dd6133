"""MindSpore's names of element types, as its files spell them, and the safetensors names of the same."""

from __future__ import annotations

FROM_MINDSPORE = {
    "Bool": "BOOL", "Int8": "I8", "UInt8": "U8", "Int16": "I16", "UInt16": "U16", "Int32": "I32", "UInt32": "U32",
    "Int64": "I64", "UInt64": "U64", "Float16": "F16", "BFloat16": "BF16", "Float32": "F32", "Float64": "F64",
}  # fmt: skip
TO_MINDSPORE = {dtype: name for name, dtype in FROM_MINDSPORE.items()}
