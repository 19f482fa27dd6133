"""What SARIF 2.1.0 asks of a log, as far as it concerns us."""

from __future__ import annotations

from typing import Any

import jsonschema

from migrate.report.sarif import FINGERPRINT

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
LOCATION = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "additionalProperties": False,
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "additionalProperties": False,
                    # section 3.4.4: relative to what uriBaseId stands for; no scheme, no absolute path, encoded
                    "properties": {
                        "uri": {"pattern": "^(?!/)(?![a-zA-Z][a-zA-Z0-9+.-]*:)[^ \\\\]+$"},
                        "uriBaseId": {"type": "string"},
                    },
                },
                "region": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"startLine": {"type": "integer", "minimum": 1}, "snippet": TEXT},
                },
            },
        },
        "logicalLocations": {
            "type": "array",
            "items": {"type": "object", "properties": {"fullyQualifiedName": {"type": "string"}}},
        },
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "additionalProperties": False,
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "name": {"type": "string"},
                                    "version": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "additionalProperties": False,
                                            "properties": {
                                                "id": {"type": "string"},
                                                "name": {"pattern": "^[A-Z][A-Za-z0-9]*$"},
                                                "shortDescription": TEXT,
                                                "fullDescription": TEXT,
                                                "help": TEXT,
                                                "defaultConfiguration": {"properties": {"level": LEVEL}},
                                                "properties": {"type": "object"},
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "invocations": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["executionSuccessful"],
                            "properties": {"executionSuccessful": {"type": "boolean"}, "exitCode": {"type": "integer"}},
                        },
                    },
                    "automationDetails": {"type": "object", "properties": {"id": {"type": "string"}}},
                    "originalUriBaseIds": {"type": "object"},
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": LEVEL,
                                "message": TEXT,
                                "locations": {"type": "array", "items": LOCATION},
                                "partialFingerprints": {"additionalProperties": {"type": "string"}},
                                "properties": {"type": "object"},
                            },
                        },
                    },
                },
            },
        },
    },
}


def check_log(log: dict[str, Any]) -> dict[str, Any]:
    """The one run of a log, after everything that a schema can say and cannot say."""
    jsonschema.Draft7Validator(SCHEMA).validate(log)
    run: dict[str, Any] = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        for place in result.get("locations", []):
            base = place.get("physicalLocation", {}).get("artifactLocation", {}).get("uriBaseId")
            assert base is None or base in run["originalUriBaseIds"]
    prints = [result["partialFingerprints"][FINGERPRINT] for result in run["results"]]
    assert len(prints) == len(set(prints))
    return run
