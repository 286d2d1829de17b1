"""The ``tool`` decorator, which turns a function into a tool."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast, get_args, get_type_hints, overload

from docstring_parser import parse
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from caseworker.engine.containment import in_thread
from caseworker.platform.suggestions import suggestion
from caseworker.tools.ports import ToolContext, ToolRefusedError, ToolResult, ToolSpec
from caseworker.tools.results import result_of_async, tool_result_of

Function = Callable[..., Any]


class FunctionTool:
    """A Tool that calls a function. It remains callable like the function itself."""

    checks_formats = True
    """The types of the arguments decide which dates and times, for example, are valid."""
    records_code = True
    converts_results = True

    def __init__(self, function: Function, **options: Any) -> None:
        """Read name, description and arguments from ``function``; ``options`` are ToolSpec fields.

        Raises:
            TypeError: the function has no docstring, an argument has no usable type, or an option
                does not exist.
        """
        if not inspect.isroutine(function):
            raise TypeError(
                f"A tool is made from a function, not from {function!r}. A class with spec and"
                " run() is a tool without the decorator."
            )
        self._name = options.pop("name", None) or function.__name__
        for option in options:
            if option not in _OPTIONS:
                hint = suggestion(option, _OPTIONS)
                raise self._error(
                    f"has no option {option!r}.{hint} Options: {', '.join(_OPTIONS)}."
                )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise self._error("is a generator function: return a list instead.")
        self._function = function
        hints = self._hints(function)
        parameters = inspect.signature(function).parameters
        self._contexts = {
            name for name, hint in hints.items() if ToolContext in (hint, *get_args(hint))
        }
        for name in self._contexts:
            del hints[name]
        own_parameters = [each for name, each in parameters.items() if name not in self._contexts]
        for parameter in own_parameters:
            self._check(parameter, hints)
        self._signature = inspect.Signature(own_parameters)
        checker: Any = self._checker(hints)
        self._arguments: TypeAdapter[dict[str, Any]] = TypeAdapter(checker)
        self.spec = self._spec(options)

    def _spec(self, options: dict[str, Any]) -> ToolSpec:
        """Return the spec; its descriptions are those in the docstring."""
        schema = self._arguments.json_schema()
        documented = parse(inspect.getdoc(self._function) or "")
        about = {each.arg_name: each.description or "" for each in documented.params}
        for name, one in schema["properties"].items():
            one.pop("title", None)  # it repeats the name
            if text := " ".join(about.get(name, "").split()):
                one.setdefault("description", text)
        first, *_ = (documented.description or "").split("\n\n")
        description = options.pop("description", None) or " ".join(first.split())
        if not description:
            raise self._error("needs a docstring: models read it.")
        return ToolSpec(name=self._name, description=description, parameters=schema, **options)

    def _error(self, problem: str) -> TypeError:
        return TypeError(f"The tool {self._name!r} {problem}")

    def _hints(self, function: Function) -> dict[str, Any]:
        """Return the types of the arguments; each is resolved alone, so that an error names it."""
        variables = getattr(inspect.unwrap(function), "__globals__", {})
        hints = dict[str, Any]()
        for name, written in inspect.get_annotations(function).items():
            one = SimpleNamespace(__annotations__={name: written})
            try:
                if name != "return":
                    hints |= get_type_hints(one, variables, include_extras=True)
            except (NameError, AttributeError, SyntaxError) as error:
                raise self._error(
                    f"has an argument {name!r} whose type cannot be resolved: {error}. Import or"
                    " define it in the same module, outside of functions and `if TYPE_CHECKING`."
                ) from None
        return hints

    def _check(self, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
        """Raise a TypeError if models cannot pass an argument."""
        name, default = parameter.name, parameter.default
        problem = None
        if parameter.kind in _UNFIT:
            problem = f"is {parameter.kind.description}, but models pass single values by name."
        elif name not in hints:
            method = " A method cannot be a tool: use a function." * (name in ("self", "cls"))
            problem = f"needs a type annotation.{method}"
        elif not name.isascii():
            problem = "needs a name of ASCII letters, because some providers reject others."
        else:
            try:
                adapter = TypeAdapter[Any](hints[name])
                adapter.json_schema()
                if not isinstance(default, FieldInfo) and default is not parameter.empty:
                    json.dumps(to_jsonable_python(default), allow_nan=False)
                    adapter.validate_python(default)
            except PydanticUserError as error:
                problem = f"has a type without a JSON Schema: {error.message.splitlines()[0]}"
            except ValueError:
                problem = (
                    f"has a default that is not a JSON value of its type: {default!r}. Models see"
                    " the default; allow None in the type and use it as default."
                )
        if problem is not None:
            raise TypeError(f"The argument {name!r} of the tool {self._name!r} {problem}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call the function with validated arguments; a synchronous function runs in a thread.

        A result that is not a dict is returned as ``{"value": result}``.

        Raises:
            ToolRefusedError: an argument does not match its type.
            UnfitResultError: the result cannot be converted to JSON.
            ValueTooLargeError: the result has more than ``context.max_result_bytes`` as JSON.
            ForeignError: a synchronous function raised it; see :func:`in_thread`.
        """
        values = {**self._values(args), **dict.fromkeys(self._contexts, context)}
        limits: dict[str, int] = {
            "max_bytes": context.max_result_bytes,
            "max_depth": context.max_result_depth,
        }

        def called() -> Any:
            with context.executing():  # until it ends, even if its call has timed out
                outcome = self._function(**values)
                # Here, because an iterator or a serializer of the result may block.
                return (
                    outcome if inspect.isawaitable(outcome) else tool_result_of(outcome, **limits)
                )

        if inspect.iscoroutinefunction(self._function):
            result = self._function(**values)
        else:
            result = await in_thread(called, context.threads)
            if not inspect.isawaitable(result):
                return cast("ToolResult", result)
        with context.executing():
            result = await result
            return await result_of_async(result, threads=context.threads, **limits)

    def _values(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as values of their types."""
        try:
            return self._arguments.validate_json(json.dumps(dict(args)))
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            wrong = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in problems)
            raise ToolRefusedError(" ".join(wrong)) from None

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


@overload
def tool(function: Function, /) -> FunctionTool: ...
@overload
def tool(**options: Any) -> Callable[[Function], FunctionTool]: ...
def tool(
    function: Function | None = None, /, **options: Any
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Turn a function into a tool.

    Models choose the tool by its name and the first paragraph of its docstring. They fill in its
    arguments according to their types and to their descriptions in the docstring, in the style of
    Google, numpy or Sphinx::

        @tool
        def shipping_cost(weight_kg: float) -> dict[str, Any]:
            "Returns the price in EUR of sending a parcel."

    ``@tool(deterministic=True, timeout_seconds=30)`` sets fields of the tool's :class:`ToolSpec`.
    An argument of the type :class:`ToolContext` receives the context of the call. Models do not see
    it.

    Raises:
        TypeError: models could not use the function; the message names the argument and a fix.
    """
    if function is not None:
        return FunctionTool(function)
    return lambda function: FunctionTool(function, **options)
