"""Command line and keyword arguments, made from the fields of config.schema.

Owns: the flag of every setting (kv_tokens is --kv-tokens, a bool has --no- too) and the way back
to a Config. Must not know: what a setting means, or which values make sense (resolve.py).
"""

from __future__ import annotations

import argparse
import difflib
import os
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from radixserve.config.schema import Config
from radixserve.errors import ConfigError

GROUPS: tuple[str, ...] = Config.__struct_fields__


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of one group. kind: str, int, float, bool, tuple[str, ...], or a Literal of
    strings."""

    group: str
    name: str
    kind: typing.Any
    default: str | int | float | bool | tuple[str, ...]
    description: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...] | None:
        return None if self.is_repeatable else typing.get_args(self.kind) or None

    @property
    def is_repeatable(self) -> bool:
        return typing.get_origin(self.kind) is tuple


def settings(groups: Iterable[str] = GROUPS) -> tuple[Setting, ...]:
    """Every setting of the named groups, in the order of the schema."""
    kinds = typing.get_type_hints(Config)
    return tuple(setting for group in groups for setting in _settings_of(group, kinds[group]))


def _settings_of(group: str, struct: type[msgspec.Struct]) -> Iterable[Setting]:
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        kind, doc = typing.get_args(hints[field.name])
        yield Setting(group, field.name, kind, field.default, doc.description)


def add_flags(parser: argparse.ArgumentParser, groups: Iterable[str] = GROUPS) -> None:
    """Add a flag for every setting of the named groups."""
    for group in groups:
        section = parser.add_argument_group(group)
        for setting in settings([group]):
            _add_flag(section, setting)


def _add_flag(section: argparse._ArgumentGroup, setting: Setting) -> None:
    shown = "empty" if setting.default in ("", ()) else str(setting.default)
    text = f"{setting.description} (default: {shown})".replace("%", "%%")
    if setting.kind is bool:
        section.add_argument(
            setting.flag, action=argparse.BooleanOptionalAction, default=setting.default, help=text
        )
    elif setting.is_repeatable:
        section.add_argument(setting.flag, action="append", help=text, metavar="TEXT")
    elif setting.choices:
        section.add_argument(
            setting.flag, choices=setting.choices, default=setting.default, help=text
        )
    else:
        kind = setting.kind
        section.add_argument(
            setting.flag,
            type=kind,
            default=setting.default,
            help=text,
            metavar={int: "N", float: "X"}.get(kind, "TEXT"),
        )


def from_args(args: argparse.Namespace) -> Config:
    """The Config that parsed flags ask for; groups that have no flags keep their defaults."""
    names = {setting.name for setting in settings()}
    given = {name: value for name, value in vars(args).items() if value is not None}
    return configure(**{name: value for name, value in given.items() if name in names})


def configure(**overrides: object) -> Config:
    """The default Config with some settings changed, whatever group they are in.

    configure(kv_tokens=4096, policy="fcfs"). A path may stand for text, one text for several.
    ConfigError: a name that is no setting, or a value of the wrong type.
    """
    known = {setting.name: setting for setting in settings()}
    changed: dict[str, dict[str, object]] = {group: {} for group in GROUPS}
    for name, value in overrides.items():
        if name not in known:
            raise ConfigError(_unknown(name, known))
        setting = known[name]
        changed[setting.group][name] = _typed(setting, value)
    default = Config()
    groups = {
        group: msgspec.structs.replace(getattr(default, group), **values)
        for group, values in changed.items()
    }
    return Config(**groups)


def _typed(setting: Setting, value: object) -> object:
    if setting.kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if setting.is_repeatable and isinstance(value, str):
        value = (value,)
    try:
        return msgspec.convert(value, setting.kind)
    except msgspec.ValidationError:
        wanted = _kind_name(setting)
        raise ConfigError(f"{setting.name} must be {wanted}, not {value!r}") from None


def _kind_name(setting: Setting) -> str:
    if setting.choices:
        return "one of " + ", ".join(setting.choices)
    if setting.is_repeatable:
        return "a list of texts"
    return {int: "a whole number", float: "a number", bool: "True or False"}.get(
        setting.kind, "text"
    )


def _unknown(name: str, known: Mapping[str, Setting]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return f"there is no setting {name!r}; close to it: {', '.join(close)}"
    return f"there is no setting {name!r}; settings are {', '.join(known)}"
