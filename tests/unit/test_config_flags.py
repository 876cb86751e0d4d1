"""Flags and keyword arguments from the fields of the schema, and back to a Config."""

from __future__ import annotations

import argparse
import pathlib
from collections import Counter

import msgspec
import pytest

from radixserve.config.flags import GROUPS, add_flags, configure, from_args, settings
from radixserve.config.schema import Config
from radixserve.errors import ConfigError

KINDS = (str, int, float, bool, tuple[str, ...])


def parse(*argv, groups=GROUPS):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser, groups)
    return parser.parse_args(argv)


def other_value(setting):
    """A valid value that is not the default."""
    if setting.choices:
        return next(choice for choice in setting.choices if choice != setting.default)
    if setting.is_repeatable:
        return ("x", "y")
    return {bool: lambda d: not d, str: lambda d: d + "x"}.get(setting.kind, lambda d: d + 1)(
        setting.default
    )


def test_names_are_unique_across_groups():
    counts = Counter(setting.name for setting in settings())
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_field_of_the_schema_is_a_setting():
    fields = {
        (group, name)
        for group in Config.__struct_fields__
        for name in getattr(Config(), group).__struct_fields__
    }
    assert {(s.group, s.name) for s in settings()} == fields
    assert len(fields) >= 20


def test_every_setting_has_a_kind_a_flag_can_have_and_a_description():
    for setting in settings():
        assert setting.choices or setting.kind in KINDS, setting
        assert setting.description.strip(), setting


def test_no_flags_give_the_default_config():
    assert from_args(parse()) == Config()


@pytest.mark.parametrize("setting", settings(), ids=lambda s: s.name)
def test_every_flag_reaches_its_field(setting):
    value = other_value(setting)
    if setting.kind is bool:
        argv = [setting.flag if value else setting.flag.replace("--", "--no-", 1)]
    elif setting.is_repeatable:
        argv = [part for each in value for part in (setting.flag, each)]
    else:
        argv = [setting.flag, str(value)]
    config = from_args(parse(*argv))
    assert getattr(getattr(config, setting.group), setting.name) == value
    assert config != Config()
    assert config == configure(**{setting.name: value})


def test_a_group_without_flags_keeps_its_defaults():
    args = parse("--kv-tokens", "64", groups=["cache"])
    assert not hasattr(args, "port")
    assert from_args(args) == configure(kv_tokens=64)


def test_other_arguments_of_the_parser_are_left_alone():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    add_flags(parser, ["http"])
    assert from_args(parser.parse_args(["serve", "--port", "1"])).http.port == 1


@pytest.mark.parametrize(
    "argv",
    [["--policy", "best"], ["--kv-tokens", "many"], ["--reserve", "x"], ["--kv_tokens", "1"]],
)
def test_a_wrong_flag_is_refused(argv):
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parse(*argv)


def test_help_says_what_and_which_default():
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = " ".join(parser.format_help().split())
    for setting in settings():
        assert setting.flag in text
        assert " ".join(setting.description.split()) in text
    assert "(default: 30000)" in text
    assert "(default: empty)" in text
    assert "--no-audit" in text


def test_configure_spreads_names_over_groups():
    config = configure(kv_tokens=4096, policy="fcfs", port=0, device="cpu")
    assert config.cache.kv_tokens == 4096
    assert config.schedule.policy == "fcfs"
    assert config.http.port == 0
    assert config.model.device == "cpu"
    assert Config().cache.kv_tokens == 0
    assert configure(api_key="one").http.api_key == ("one",)
    assert configure(api_key=["one", "two"]).http.api_key == ("one", "two")


def test_an_unknown_name_is_refused_with_close_ones():
    with pytest.raises(ConfigError, match=r"'kv_token'.*kv_tokens"):
        configure(kv_token=1)
    with pytest.raises(ConfigError, match=r"'zzz'; settings are model, "):
        configure(zzz=1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"kv_tokens": "12"}, "kv_tokens must be a whole number, not '12'"),
        ({"kv_tokens": True}, "kv_tokens must be a whole number, not True"),
        ({"kv_tokens": 1.5}, "kv_tokens must be a whole number, not 1.5"),
        ({"memory_share": "half"}, "memory_share must be a number, not 'half'"),
        ({"audit": 1}, "audit must be True or False, not 1"),
        ({"policy": "best"}, "policy must be one of lpm, .*, not 'best'"),
        ({"host": None}, "host must be text, not None"),
        ({"api_key": [1]}, r"api_key must be a list of texts, not \[1\]"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        configure(**overrides)


def test_whole_floats_and_paths_are_taken():
    config = configure(memory_share=0.25, grace=5, model=pathlib.Path("models/tiny"))
    assert (config.http.grace, config.model.model) == (5.0, "models/tiny")


def test_config_survives_the_wire():
    config = configure(kv_tokens=4096, model="é", reserve=0.125)
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config
