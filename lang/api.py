"""The words of the language: what a program writes to build expressions.

Owns: the names and parameters that programs written for SGLang's frontend use. Must not know: how
expressions are run. A parameter whose effect does not exist yet raises NotImplementedError here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from radixserve.lang.choices import ChoicesMethod, token_length_normalized
from radixserve.lang.constraints import constraint
from radixserve.lang.ir import (
    Chain,
    Declare,
    Expr,
    Gen,
    Nested,
    Op,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Thoughts,
    is_text,
    items,
)
from radixserve.lang.limits import bias, seconds
from radixserve.lang.sampling import Sampling, stop_texts, token_ids
from radixserve.lang.toolkit import Calling, ToolCall, result_text
from radixserve.lang.toolmaking import calling, toolset
from radixserve.lang.typed import Typed, typed

_GREEDY_BELOW = 1e-6
_NOT = Typed({}, str)


def gen(  # noqa: PLR0913 - the compatible surface
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: object = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    regex: str | None = None,
    json_schema: object = None,
    *,
    ebnf: str | None = None,
    choice: Iterable[str] | None = None,
    structural_tag: str | dict[str, Any] | None = None,
    json_object: bool | None = None,
    whitespace: Literal["fixed", "bounded"] | None = None,
    constraint_mode: Literal["enforce", "validate"] | None = None,
    field_logprobs: bool | None = None,
    separate_reasoning: bool | None = None,
    thinking_token_budget: int | None = None,
    seed: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    timeout: float | None = None,
    schema: Any = None,
    tools: Iterable[Any] | None = None,
    tool_choice: str | dict[str, Any] | Callable[..., Any] | None = None,
    parallel_tool_calls: bool | None = None,
) -> Expr:
    """Let the model write; the text becomes variable `name`. None means run()'s default.

    The text ends before a stop text, behind the token in which it first matches one of stop_regex,
    at an end token or after max_tokens tokens. n > 1 samples n texts for one prompt: the variable
    is their list and the state goes on from the first.
    choices makes it a select(), which no sampling parameter fits.

    regex, json_schema (text, a dict or a pydantic model), ebnf, choice (one of these texts),
    structural_tag, json_object, dtype: at most one; the whole text matches it. Where max_tokens is
    not enough the meta information says truncated. dtype (int, float, str, bool) is SGLang's: a
    regex for such a value, whose text, not itself, is the variable; a str stands in quotes.
    whitespace: blanks around JSON's punctuation, one spelling or up to 8. constraint_mode:
    "validate" enforces what can be, and the meta information has constraint_violations.
    field_logprobs: it has, by JSON pointer, how sure the model was of each value.

    separate_reasoning: the variable is the answer alone, and the meta information has
    reasoning_content. thinking_token_budget: most tokens of reasoning.

    seed: the same seed, prompt and parameters give the same text. logit_bias: token id to addend,
    -100 to 100. timeout: seconds for this call, else DeadlineExceeded.

    schema: a Python type (see lang.typed); the variable is an object of it, not its text. Where
    max_tokens cut the text short, or nothing bound it, it may be none: TypedOutputError.

    tools: functions, classes or dicts of OpenAI's chat that the model may call; the variable is a
    Turn, its text with `calls` beside. They are told where the conversation begins: by this gen, if
    it is the first call, else by tools(), of which these are some. tool_choice: "auto", "required",
    "none", the name of one, or an object of OpenAI's chat; without tools=, of those that were told.
    parallel_tool_calls: False allows one call. Beside tools, json_schema, json_object or schema
    bind an answer that calls nothing.
    """
    _check_name(name)
    may_call = calling(tools, tool_choice, parallel_tool_calls)
    kinds = {
        "dtype": dtype,
        "regex": regex,
        "json_schema": json_schema,
        "ebnf": ebnf,
        "choice": choice,
        "structural_tag": structural_tag,
        "json_object": json_object,
    }
    made = _made(schema, {**kinds, "choices": choices})
    if may_call is not None:
        beside = {"choices": choices, "field_logprobs": field_logprobs, **(made or _NOT).bound}
        _check_beside_tools(may_call, {**kinds, **beside}, constraint_mode)
    bound = constraint(
        **(made.bound if made else kinds), whitespace=whitespace, constraint_mode=constraint_mode
    )
    sampling = Sampling(
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens,
        n=n,
        stop=stop_texts(stop),
        stop_token_ids=token_ids(stop_token_ids),
        stop_regex=stop_texts(stop_regex),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        ignore_eos=ignore_eos,
        return_logprob=return_logprob,
        logprob_start_len=logprob_start_len,
        top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs,
        sampling_seed=seed,
        logit_bias=bias(logit_bias),
        field_logprobs=field_logprobs,
        separate_reasoning=separate_reasoning,
        thinking_token_budget=thinking_token_budget,
        **bound,
    )
    if choices is not None:
        method = choices_method or token_length_normalized
        return _choice_of(name, choices, sampling, method, timeout)
    if choices_method is not None:
        raise ValueError("gen(choices_method=..) needs choices")
    return Gen(name, sampling, seconds(timeout), made.read if made else None, may_call)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod = token_length_normalized,
    timeout: float | None = None,
) -> Expr:
    """Let the model pick one of `choices`; variable `name` is exactly that string.

    Every choice is scored by its own tokens' log-probabilities after the prompt, then
    choices_method picks. Its scores are in the meta information. Sampling (temperature > 0) is not
    implemented. timeout: seconds for this call.
    """
    _check_name(name)
    if choices is None:
        raise ValueError("select() needs choices")
    return _choice_of(name, choices, Sampling(temperature=temperature), choices_method, timeout)


def system(expr: str | Expr | None = None) -> Expr:
    """A system block of the model's own template, holding `expr`."""
    return _role("system", expr)


def user(expr: str | Expr | None = None) -> Expr:
    """A user block of the model's own template, holding `expr`."""
    return _role("user", expr)


def assistant(expr: str | Expr | None = None) -> Expr:
    """An assistant block of the model's own template, holding `expr`."""
    return _role("assistant", expr)


def tools(given: Iterable[Any]) -> Expr:
    """The tools of a conversation, before its first call: functions, classes or dicts as in
    gen(tools=..). The model is told where its chat template tells it, once, so every call of the
    conversation begins alike. Text of gens that say nothing of tools is not bound."""
    return Declare(toolset(given))


def tool(call: ToolCall | str, result: Any) -> Chain:
    """The result of a call, as the model's own template shows it. call: of a Turn, or its id.

    result: a text, an expression, or a value that becomes JSON. Raises TypeError where it is none;
    ProgramError, where it is appended, for a call that was not made in this conversation.
    """
    call_id = call.id if isinstance(call, ToolCall) else call
    if not isinstance(call_id, str) or not call_id:
        raise TypeError(f"tool() takes a call of a Turn, or its id, not {call!r}")
    inner = items(result) if is_text(result) or isinstance(result, Expr) else ()
    return Chain(
        (
            RoleBegin("tool", call_id),
            *(inner or (Text(result_text(result)),)),
            RoleEnd("tool"),
        )
    )


def system_begin() -> Expr:
    return RoleBegin("system")


def system_end() -> Expr:
    return RoleEnd("system")


def user_begin() -> Expr:
    return RoleBegin("user")


def user_end() -> Expr:
    return RoleEnd("user")


def assistant_begin() -> Expr:
    return RoleBegin("assistant")


def assistant_end() -> Expr:
    return RoleEnd("assistant")


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    **sampling: Any,
) -> Expr:
    """gen() of the text of a whole number; sampling: further arguments of gen()."""
    return gen(
        name, max_tokens, n=n, stop=stop, stop_token_ids=stop_token_ids, dtype=int, **sampling
    )


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    **sampling: Any,
) -> Expr:
    """gen() of letters, digits and blanks in double quotes, which are part of the text."""
    return gen(
        name, max_tokens, n=n, stop=stop, stop_token_ids=stop_token_ids, dtype=str, **sampling
    )


def image(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("image is not implemented: models here read text only")


def video(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("video is not implemented: models here read text only")


def separate_reasoning(expr: str | Expr, model_type: str | None = None) -> Chain:
    """`expr` with its gens' reasoning apart: of gen("x") the answer is variable x, the reasoning
    x_reasoning_content.

    model_type: which parser SGLang takes. A backend here knows its model's tags (--reasoning-parser
    of the server), so this changes nothing. Raises ValueError where `expr` has no gen with a name.
    """
    if model_type is not None and not isinstance(model_type, str):
        raise TypeError(f"model_type is a str, not {model_type!r}")
    parted: list[Op | Nested] = []
    for item in items(expr):
        if type(item) is Gen and item.name is not None:
            sampling = dataclasses.replace(item.sampling, separate_reasoning=True)
            parted.append(dataclasses.replace(item, sampling=sampling))
            parted.append(Thoughts(f"{item.name}_reasoning_content", item.name))
        else:
            parted.append(item)
    if not any(type(item) is Thoughts for item in parted):
        raise ValueError(f"separate_reasoning() needs a gen with a name in it, not {expr!r}")
    return Chain(tuple(parted))


def Runtime(*_: Any, **__: Any) -> NoReturn:  # noqa: N802 - a class in the compatible surface
    raise NotImplementedError(
        "Runtime is not implemented: use radixserve.Engine(model), or RuntimeEndpoint(url)"
    )


def _check_beside_tools(may_call: Calling, beside: dict[str, Any], mode: str | None) -> None:
    """Raise ValueError for what excludes calls: a text so bound might be one."""
    if may_call.choice == "none":
        return
    for name, value in beside.items():
        if value is not None and value is not False and name not in ("json_schema", "json_object"):
            raise ValueError(
                f"{name} and tools exclude each other: beside tools an answer is text or JSON"
            )
    if mode == "validate":
        raise ValueError("constraint_mode validate and tools exclude each other")


def _made(schema: Any, kinds: dict[str, Any]) -> Typed | None:
    if schema is None:
        return None
    for name, value in kinds.items():
        if value is not None:
            raise ValueError(f"schema and {name} exclude each other")
    return typed(schema)


def _choice_of(
    name: str | None,
    choices: Sequence[str],
    sampling: Sampling,
    method: ChoicesMethod,
    timeout: float | None,
) -> Select:
    if is_text(choices) or not all(map(is_text, choices)):
        raise TypeError(f"choices must be a list of strings, not {choices!r}")
    if not choices:
        raise ValueError("choices is empty: there is nothing to select")
    for given, value in (sampling.params() | sampling.beside()).items():
        if given != "temperature":
            raise ValueError(f"{given} has no effect on a choice")
        if value >= _GREEDY_BELOW:
            raise NotImplementedError(f"select with temperature {value} is not implemented yet")
    return Select(name, tuple(choices), method, seconds(timeout))


def _role(role: str, expr: str | Expr | None) -> Chain:
    inner = () if expr is None else items(expr)
    return Chain((RoleBegin(role), *inner, RoleEnd(role)))


def _check_name(name: object) -> None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"the name of a variable is a str, not {name!r}")
