"""Templates: values are substituted once, and nothing is evaluated."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS
from caseworker.nodes.templates import (
    MISSING,
    JsonTemplate,
    MissingValueError,
    Path,
    PathError,
    TemplateError,
    TextTemplate,
    TooMuchTextError,
)

INPUTS: dict[str, Any] = {
    "default": {"items": [{"price": 2.5}, None], "name": "Ada", "__class__": "a key"},
    "flag": True,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("default.items.0.price", 2.5),
        ("default.items.1", None),
        ("default.name", "Ada"),
        ("flag", True),
        ("default.__class__", "a key"),
        ("default.items.2", MISSING),
        ("default.items.-1", MISSING),
        ("default.items.\u0660", MISSING),
        ("default.items.first", MISSING),
        ("default.items.__len__", MISSING),
        ("default.name.0", MISSING),
        ("default.name.upper", MISSING),
        ("flag.real", MISSING),
        ("other", MISSING),
    ],
)
def test_a_path_finds_keys_and_indexes_and_nothing_else(path: str, value: Any) -> None:
    """A path reads no attributes, no characters of a text and no negative indexes."""
    assert Path.parse(path).find(INPUTS) is value or Path.parse(path).find(INPUTS) == value


@pytest.mark.parametrize(
    "text", ["", ".", "default.", ".default", "a..b", "a b", "a!r", "a:>9", "x" * 65, "a." * 40]
)
def test_what_is_no_path_is_refused(text: str) -> None:
    """The path is rejected when it is parsed."""
    with pytest.raises(PathError):
        Path.parse(text)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain $ text {x}", "plain $ text {x}"),
        ("${default.name} pays ${default.items.0.price}", "Ada pays 2.5"),
        ("${default.items}", '[{"price":2.5},null]'),
        ("${flag}${default.items.1}", "truenull"),
        ("$${default.name} is ${default.name}", "${default.name} is Ada"),
        ("$$${default.name}", "$${default.name}"),
        ("{{ default.name }} {% x %} {default.name!r:>9}",) * 2,
    ],
)
def test_a_text_gets_its_values(template: str, text: str) -> None:
    """Values that are not text become compact JSON; `$$` is a literal dollar sign."""
    assert TextTemplate.parse(template).render(INPUTS) == text


def test_a_value_is_never_read_as_a_template() -> None:
    """A substituted value is not expanded again."""
    inputs = {"default": "${secret} $${secret}", "secret": "s3cret"}

    assert TextTemplate.parse("<${default}>").render(inputs) == "<${secret} $${secret}>"
    assert JsonTemplate({"a": "${default}"}).render(inputs) == {"a": "${secret} $${secret}"}


@given(st.text(st.sampled_from("${}a.$"), max_size=20) | st.text(max_size=20))
def test_an_escaped_text_renders_to_itself(text: str) -> None:
    """Escaped dollar signs and braces render unchanged."""
    escaped = text.replace("${", "$${")
    assert TextTemplate.parse(escaped).render({}) == text
    assert JsonTemplate([escaped]).render({}) == [text]


@pytest.mark.parametrize(
    "text", ["${default", "a ${", "${}", "${a b}", "${a.${b}}", "${default!r}"]
)
def test_a_broken_place_is_refused_when_the_template_is_read(text: str) -> None:
    """Placeholders in texts and deep inside JSON are checked."""
    for read in (TextTemplate.parse, lambda text: JsonTemplate({"a": [text]})):
        with pytest.raises(TemplateError):
            read(text)


def test_a_string_that_is_one_place_keeps_the_kind_of_its_value() -> None:
    """Next to other text the value becomes text; keys are not templates."""
    template = JsonTemplate(
        {"all": "${default.items}", "${flag}": ["${flag}", "is ${flag}", 7, None, ""]}
    )

    assert template.render(INPUTS) == {
        "all": [{"price": 2.5}, None],
        "${flag}": [True, "is true", 7, None, ""],
    }
    assert not template.constant


def test_what_is_rendered_belongs_to_nobody_else() -> None:
    """A tool that changes its arguments does not change the template."""
    template = JsonTemplate({"a": [1, {"b": 2}]})

    template.render({})["a"][1]["b"] = 3

    assert template.constant
    assert template.render({}) == {"a": [1, {"b": 2}]}


@pytest.mark.parametrize(
    "render", [TextTemplate.parse("${a.b}").render, JsonTemplate("${a.b}").render]
)
def test_a_missing_value_is_named(render: Any) -> None:
    """The error for a missing value names its path."""
    with pytest.raises(MissingValueError, match=r"^There is no value at a\.b\.$"):
        render({"a": {}})


def test_values_that_are_repeated_cannot_grow_without_end() -> None:
    """The limit counts repeated values, whether copied or referenced."""
    value = ["x" * 1000]
    times = DEFAULT_VALUE_LIMITS.max_value_bytes // len(json.dumps(value)) + 1

    with pytest.raises(TooMuchTextError):
        TextTemplate.parse("${default}" * times).render({"default": value})
    with pytest.raises(TooMuchTextError):
        JsonTemplate(["${default}"] * times).render({"default": value})
    assert len(JsonTemplate(["${default}"] * (times - 1)).render({"default": value})) == times - 1


def test_a_template_that_is_nested_too_deeply_is_refused() -> None:
    """The nesting limit is well below Python's recursion limit."""
    value: Any = "x"
    for _ in range(5000):
        value = [value]
    with pytest.raises(TemplateError, match="deep"):
        JsonTemplate(value)
