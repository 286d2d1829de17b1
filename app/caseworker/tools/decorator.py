"""The ``tool`` decorator, which turns a function into a tool."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, get_type_hints, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ArgsKwargs, to_jsonable_python

from caseworker.tools.ports import ToolContext, ToolRefusedError, ToolResult, ToolSpec

Function = Callable[..., Any]


class FunctionTool:
    """A Tool that calls a function. It remains callable like the function itself."""

    def __init__(self, function: Function, **options: Any) -> None:
        """Read name, description and arguments from ``function``; ``options`` are ToolSpec fields.

        Raises:
            TypeError: the function has no docstring, an argument has no usable type, or an option
                does not exist.
        """
        for option in options:
            if option not in _OPTIONS:
                near = get_close_matches(option, _OPTIONS, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise TypeError(
                    f"The tool {function.__name__!r} has no option {option!r}{hint}"
                    f" Options: {', '.join(_OPTIONS)}."
                )
        self._function = function
        hints = get_type_hints(function, include_extras=True)
        hints.pop("return", None)
        parameters = inspect.signature(function).parameters
        self._context = next((name for name in hints if hints[name] is ToolContext), None)
        names = [name for name in parameters if name != self._context]
        for name in names:
            if name not in hints or parameters[name].kind in _UNFIT:
                raise TypeError(
                    f"The argument {name!r} of the tool {function.__name__!r} needs a type"
                    " annotation and must be a single argument that accepts a keyword."
                )
        self._signature = inspect.Signature([parameters[name] for name in names])
        checker: Any = self._checker({name: hints[name] for name in names})
        self._arguments: TypeAdapter[dict[str, Any]] = TypeAdapter(checker)
        description = options.pop("description", None) or inspect.getdoc(function)
        if not description:
            raise TypeError(f"The tool {function.__name__!r} needs a docstring: models read it.")
        self.spec = ToolSpec(
            name=options.pop("name", None) or function.__name__,
            description=description,
            parameters=self._arguments.json_schema(schema_generator=_Untitled),
            **options,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call the function with validated arguments; a synchronous function runs in a thread.

        A result that is not a dict is returned as ``{"value": result}``.

        Raises:
            ToolRefusedError: an argument does not match its type.
        """
        try:
            values: dict[str, Any] = self._arguments.validate_python(ArgsKwargs((), dict(args)))
        except ValidationError as error:
            wrong = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ToolRefusedError(" ".join(wrong)) from None
        if self._context is not None:
            values = {**values, self._context: context}
        if inspect.iscoroutinefunction(self._function):
            result = await self._function(**values)
        else:
            result = await asyncio.to_thread(self._function, **values)
        result = to_jsonable_python(result)
        return result if isinstance(result, dict) else {"value": result}

    def _checker(self, hints: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
        """Return a function with this signature that returns its arguments, with defaults."""

        def checked(*args: Any, **kwargs: Any) -> dict[str, Any]:
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return bound.arguments

        checked.__annotations__ = dict(hints)
        checked.__signature__ = self._signature  # type: ignore[attr-defined]
        return checked


_OPTIONS = [field.name for field in fields(ToolSpec) if field.name != "parameters"]
_UNFIT = {
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
}


class _Untitled(GenerateJsonSchema):
    """Omits titles, which only repeat the names of arguments."""

    def kw_arguments_schema(self, arguments: Any, var_kwargs_schema: Any) -> dict[str, Any]:
        schema = super().kw_arguments_schema(arguments, var_kwargs_schema)
        for each in schema["properties"].values():
            each.pop("title", None)
        return schema


@overload
def tool(function: Function, /) -> FunctionTool: ...
@overload
def tool(**options: Any) -> Callable[[Function], FunctionTool]: ...
def tool(
    function: Function | None = None, /, **options: Any
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Turn a function into a tool.

    Models choose the tool by its name and its docstring, and fill in its arguments according to
    their types::

        @tool
        def shipping_cost(weight_kg: float) -> dict[str, Any]:
            "Returns the price in EUR of sending a parcel."

    ``@tool(deterministic=True, timeout_seconds=30)`` sets fields of the tool's :class:`ToolSpec`.
    An argument of the type :class:`ToolContext` receives the context of the call. Models do not see
    it.
    """
    if function is not None:
        return FunctionTool(function)
    return lambda made: FunctionTool(made, **options)
