"""Hooks of the site build.

They generate the reference pages: the HTTP API from the OpenAPI document, the settings from their
schema. Links to files outside the documentation folder are replaced by the path of the file.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Literal, get_args, get_origin

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parents[2]))

from caseworker.settings.schema import Settings
from caseworker.settings.values import Location, path_text, variable_of
from tests.support.api import openapi_document

Json = Mapping[str, Any]
MEDIA_OF_PROBLEMS = "application/problem+json"
OUTWARD_LINK = r"\[([^]]+)\]\({}([^.)][^)]*)\)"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated reference pages."""
    for name, text in (("http", http_page(openapi_document())), ("settings", settings_page())):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace links to files outside the documentation folder by their paths."""
    up = re.escape("../" * (page.file.src_uri.count("/") + 1))
    return re.sub(OUTWARD_LINK.format(up), r"\1 (`\2` in the repository)", markdown)


def http_page(document: Json) -> str:
    """Return the page of all routes with parameters, bodies, responses and referenced models."""
    text = (
        "# HTTP API\n\nGenerated from `/openapi.json`, which every service provides. Errors are"
        " [problem documents](../problems.md). Unknown fields are rejected.\n"
    )
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = "".join(_operation(method.upper(), path, operation))
            by_tag.setdefault(operation.get("tags", ["service"])[0], []).append(shown)
    for tag, shown_operations in by_tag.items():
        text += f"\n## {tag.capitalize()}\n" + "".join(shown_operations)
    text += "\n## Models\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        text += f"\n### {name}\n\n" + "".join(_model(schema))
    return text


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f"\n### {method} {path}\n\n{_plain(operation.get('description', operation['summary']))}\n"
    if parameters := operation.get("parameters"):
        yield "\n| parameter | in | type | meaning |\n|---|---|---|---|\n"
        for each in parameters:
            need = " (required)" if each.get("required") else ""
            meaning = _cell(each.get("description", ""))
            kind = _type(each["schema"])
            yield f"| `{each['name']}`{need} | {each['in']} | {kind} | {meaning} |\n"
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"\nBody, `{media}`: {_type(content['schema'])}\n"
        for example in content.get("examples", {}).values():
            yield f"\n{example['summary']}:\n\n```json\n{_json(example['value'])}\n```\n"
    yield "\n| status | meaning | body |\n|---|---|---|\n"
    for status, answer in operation["responses"].items():
        bodies = [
            "a problem" if media == MEDIA_OF_PROBLEMS else f"{_type(each['schema'])} (`{media}`)"
            for media, each in answer.get("content", {}).items()
            if "schema" in each
        ]
        yield f"| {status} | {_cell(answer['description'])} | {', '.join(bodies)} |\n"


def _model(schema: Json) -> Iterator[str]:
    if description := schema.get("description"):
        yield f"{_plain(description)}\n\n"
    if "properties" not in schema:
        yield f"{_type(schema)}\n"
        return
    yield "| field | type | default | meaning |\n|---|---|---|---|\n"
    for name, field in schema["properties"].items():
        need = " (required)" if name in schema.get("required", ()) else ""
        default = f"`{_cell(json.dumps(field['default']))}`" if "default" in field else ""
        meaning = _cell(field.get("description", ""))
        yield f"| `{name}`{need} | {_type(field)} | {default} | {meaning} |\n"


def _type(schema: Json) -> str:
    """Return the type of a schema, with links to the models that it references."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for many in ("anyOf", "oneOf", "allOf"):
        if many in schema:
            return " or ".join(dict.fromkeys(map(_type, schema[many])))
    if "const" in schema or "enum" in schema:
        words = schema.get("enum", [schema.get("const")])
        return " or ".join(f"`{json.dumps(word)}`" for word in words)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    values = schema.get("additionalProperties")
    if schema.get("type") == "object" and isinstance(values, Mapping) and values:
        return f"object of {_type(values)}"
    bounds = (("minimum", "≥"), ("maximum", "≤"), ("maxLength", "characters ≤"))
    limits = [f"{sign} {schema[key]:.15g}" for key, sign in bounds if key in schema]
    kind = schema.get("format", schema.get("type", "any JSON"))
    return f"{kind} ({', '.join(limits)})" if limits else str(kind)


def settings_page() -> str:
    """Return the page of all settings by section, with variable, default and meaning."""
    text = (
        "# Settings\n\nEvery key of `config.yaml` with its default. An environment variable with"
        " the path of the key in capitals overrides the file. The same variable with the prefix"
        " `CASEWORKER_` takes precedence. `caseworker config check` validates a configuration."
        "\n"
    )
    return text + "".join(_section(Settings, ()))


def _section(section: type[BaseModel], path: Location) -> Iterator[str]:
    inner = {
        name: type(field.default)
        for name, field in section.model_fields.items()
        if isinstance(field.default, BaseModel)
    }
    if path:
        yield f"\n## {path_text(path)}\n\n{_plain(section.__doc__ or '')}\n"
    if set(inner) != set(section.model_fields):
        yield "\n| key | default | meaning |\n|---|---|---|\n"
    for name, field in section.model_fields.items():
        if name not in inner:
            key = (*path, name)
            words = [f"`{word}`" for word in _words(field.annotation)]
            choices = f" One of {', '.join(words)}." * bool(words)
            meaning = _cell(f"{field.description or ''}{choices}")
            default = "from the environment only" if name == "api_key" else _default(field.default)
            yield f"| `{path_text(key)}` <br> `{variable_of(key)}` | {default} | {meaning} |\n"
    for name, kind in inner.items():
        yield from _section(kind, (*path, name))


def _words(annotation: Any) -> list[str]:
    kinds = (annotation, *get_args(annotation))
    return [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]


def _default(value: Any) -> str:
    return f"`{value if isinstance(value, PurePath | str) and str(value) else _compact(value)}`"


def _compact(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, default=str)


def _plain(text: str) -> str:
    return "\n".join(line.strip() for line in text.replace("``", "`").splitlines()).strip()


def _cell(text: str) -> str:
    return " ".join(_plain(text).split()).replace("|", "\\|")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
