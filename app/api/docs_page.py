"""The page at /docs: the OpenAPI document as one plain HTML page.

The usual pages load their scripts from a public host. Services of this kind often run where there
is no such host, so this page is made here, and needs neither scripts nor the network.
"""

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1d2433; background: #fff }
h2 { margin-top: 2.5rem } h2 code { font-size: 1rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top;
  padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #e3e6ec }
pre { background: #f4f6fa; padding: .75rem; overflow-x: auto } summary { cursor: pointer }
@media (prefers-color-scheme: dark) { body { background: #14171d; color: #dfe3ea }
  pre { background: #1f242d } td, th { border-color: #333a45 } a { color: #8ab4f8 } }
"""


def docs_page(document: Mapping[str, Any]) -> str:
    """Return the page for an OpenAPI document."""
    info = document["info"]
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>',
            '<meta name="viewport" content="width=device-width">',
            f"<style>{_STYLE}</style>",
            f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
            f"<p>{_prose(info.get('description', ''))}</p>",
            '<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>',
            *_operations(document["paths"]),
            *_schemas(document["components"]["schemas"]),
            "</html>",
        ]
    )


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in paths.items():
        for method, operation in operations.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{_prose(operation.get('description', operation['summary']))}</p>"
            yield from _parameters(operation.get("parameters", []))
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                yield "<h3>Body</h3>"
                yield f"<p>{_link(body['schema'])}</p>"
                yield from _examples(body.get("examples", {}))
            yield from _answers(operation["responses"])


def _parameters(parameters: list[Mapping[str, Any]]) -> Iterator[str]:
    if parameters:
        yield "<h3>Parameters</h3><table>"
        for parameter in parameters:
            name, place = escape(parameter["name"]), escape(parameter["in"])
            meaning = _prose(parameter.get("description", ""))
            yield f"<tr><td><code>{name}</code><td>{place}<td>{meaning}"
        yield "</table>"


def _examples(examples: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for example in examples.values():
        text = escape(json.dumps(example["value"], indent=2))
        yield f"<details><summary>{escape(example['summary'])}</summary><pre>{text}</pre></details>"


def _answers(responses: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "<h3>Answers</h3><table>"
    for status, response in sorted(responses.items()):
        forms = [
            f"{escape(media_type)} {_link(content['schema'])}"
            for media_type, content in response.get("content", {}).items()
        ]
        meaning = _prose(response["description"])
        yield f"<tr><td>{escape(status)}<td>{meaning}<td>{'<br>'.join(forms)}"
    yield "</table>"


def _schemas(schemas: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Schemas</h2>"
    for name, schema in schemas.items():
        text = escape(json.dumps(schema, indent=2))
        yield f'<details id="{escape(name)}"><summary>{escape(name)}</summary>'
        yield f"<pre>{text}</pre></details>"


def _link(schema: Mapping[str, Any]) -> str:
    """Return links to the schemas that are named, or what the schema says of itself."""
    named = [one["$ref"] for one in (schema, *schema.get("anyOf", [])) if "$ref" in one]
    names = [escape(reference.rpartition("/")[2]) for reference in named]
    links = [f'<a href="#{name}">{name}</a>' for name in names]
    return " or ".join(links) or escape(str(schema.get("type", "")))


def _prose(text: str) -> str:
    """Return a description as HTML; what stands between backticks is code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


_CODE = re.compile(r"`{1,2}([^`]+)`{1,2}")
