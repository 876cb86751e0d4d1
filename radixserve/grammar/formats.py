"""The formats that are enforced, as regular expressions.

Owns: which names of `format` mean something here. Each pattern accepts a subset of its format, so
that every validator agrees; names that are not listed are annotations. Must not know: JSON.
"""

from __future__ import annotations

_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP = "(([1-9][0-9](0[48]|[2468][048]|[13579][26]))|(([13579][26]|[2468][048])00))-02-29"
_DATE = f"([1-9][0-9]{{3}}-{_DAY}|{_LEAP})"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_CLOCK})"
_LABEL = "[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,20}){0,2}"
_TOP = "[A-Za-z]{2,20}"
_HOST = rf"({_LABEL}\.){{0,4}}{_TOP}"
_ATOM = "[A-Za-z0-9_+-]{1,30}"
_EMAIL = rf"{_ATOM}(\.{_ATOM}){{0,2}}@({_LABEL}\.){{1,3}}{_TOP}"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [
        f"({_GROUP}:){{7}}{_GROUP}",
        f"({_GROUP}:){{1,7}}:",
        *(f"({_GROUP}:){{1,{7 - n}}}(:{_GROUP}){{1,{n}}}" for n in range(1, 7)),
        f":(:{_GROUP}){{1,7}}",
        "::",
    ]
)
_SIGN = r"[A-Za-z0-9._~!$&'()*+,;=:@-]"
_PLACE = rf"({_SIGN}|%{_HEX}{_HEX})"
_PATH = f"(/{_PLACE}*)*"
_QUERY = rf"(\?({_PLACE}|[/?])*)?(#({_PLACE}|[/?])*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]{{0,15}}://{_HOST}(:[1-9][0-9]{{0,3}})?{_PATH}{_QUERY}"
_POINTER = "(/([^~/]|~[01])*)*"
_DURATION = (
    "P([0-9]{1,4}W|[0-9]{1,4}D(T_)?|[0-9]{1,4}M([0-9]{1,4}D)?(T_)?"
    "|[0-9]{1,4}Y([0-9]{1,4}M([0-9]{1,4}D)?)?(T_)?|T_)"
).replace(
    "T_",
    "T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S)",
)

PATTERNS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "ipv4": rf"({_OCTET}\.){{3}}{_OCTET}",
    "ipv6": _IPV6,
    "uuid": "-".join(f"{_HEX}{{{n}}}" for n in (8, 4, 4, 4, 12)),
    "uri": _URI,
    "iri": _URI,
    "uri-reference": f"{_URI}|(/{_PLACE}+)+{_QUERY}",
    "iri-reference": f"{_URI}|(/{_PLACE}+)+{_QUERY}",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(0|[1-9][0-9]{{0,5}})(#|{_POINTER})",
}

# Validators check these, and no automaton of ours describes them.
REFUSED = frozenset({"regex", "uri-template"})
