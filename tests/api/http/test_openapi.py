"""The OpenAPI document is one that validators and generators of clients accept (API-7)."""

from importlib.metadata import version
from typing import Any

import schemathesis
from jsonschema import Draft202012Validator


def test_api_7_the_document_is_valid_openapi_of_the_stated_version(api_document: Any) -> None:
    assert api_document["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(api_document).validate()


def test_api_7_every_default_of_a_parameter_is_allowed_by_its_schema(api_document: Any) -> None:
    operations = [operation for path in api_document["paths"].values() for operation in path.values()]
    schemas = [parameter["schema"] for operation in operations for parameter in operation.get("parameters", ())]
    with_default = [schema for schema in schemas if "default" in schema]
    assert with_default
    for schema in with_default:
        Draft202012Validator({**api_document, **schema}).validate(schema["default"])


def test_api_7_the_document_has_the_version_of_the_package(api_document: Any) -> None:
    assert api_document["info"]["version"] == version("turnkeeper")
