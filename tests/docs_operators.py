"""The tables of docs/operators.md, made from what they describe.

python -m tests.docs_operators      writes them anew
"""

from __future__ import annotations

import pathlib
import re

from prometheus_client.parser import text_string_to_metric_families

from radixserve.config.flags import settings
from radixserve.metrics.prometheus import Metrics

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "operators.md"


def flags() -> str:
    """Every setting: its flag, its default, what it is."""
    rows = ["| flag | default | |", "|---|---|---|"]
    for setting in settings():
        flag = f"{setting.flag}, --no-{setting.flag[2:]}" if setting.kind is bool else setting.flag
        shown = _shown(setting.default)
        choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
        rows.append(f"| `{flag}` | {shown} | {setting.description}{choices} |")
    return "\n".join(rows)


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "" if default == () else str(default)


def metrics() -> str:
    """Every metric: its name, its kind, what it is."""
    made = Metrics()
    made.describe(version="", model="")
    rows = ["| metric | kind | |", "|---|---|---|"]
    for family in text_string_to_metric_families(made.scrape()[0].decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {family.documentation} |")
    return "\n".join([*rows[:2], *sorted(rows[2:])])


def page() -> str:
    """The page with its tables as they should be."""
    text = PAGE.read_text()
    for name, table in (("flags", flags()), ("metrics", metrics())):
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m, t=table: f"{m[1]}{t}\n{m[2]}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
