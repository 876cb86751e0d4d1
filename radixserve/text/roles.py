"""What opens and closes a block of a role, taken from a chat template without reading it.

Owns: deriving role text as the difference of renderings around sentinels, and whether a template
only ever appends. Must not know: jinja, tokens.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from radixserve.errors import InvalidRequest
from radixserve.text.blocks import ASSISTANT, AnyBlock, Block, Roles, check_role, role_of

__all__ = ["MAX_BLOCKS", "MAX_ROLES", "RoleText", "RoleTexts", "Roles", "check_role", "json_text"]

# (roles, contents, add_generation_prompt) -> text; raises InvalidRequest where it refuses
Render = Callable[[Roles, tuple[str, ...], bool], str]

MAX_BLOCKS = 1024
MAX_ROLES = 16  # different ones
_PROBED: tuple[Roles, ...] = (
    ("system", "user", "assistant", "user", "assistant"),
    ("user", "assistant", "user", "assistant"),
)


@dataclass(frozen=True, slots=True)
class RoleText:
    """open: what stands before the block's content, behind all that came before. close: after."""

    open: str
    close: str


class RoleTexts:
    """The role texts of one template; the last some hundred are kept.

    written: what an output that called has written behind the last argument, a text. The content of
    a block that called is, for `render`, that argument. keeps: renderings that are kept.

    Worked example, ChatML with a default system block: role_text((), "user") opens with
    "<|im_start|>system\\nYou are ..<|im_end|>\\n<|im_start|>user\\n" and closes with
    "<|im_end|>\\n"; role_text(("user",), "assistant") opens with "<|im_start|>assistant\\n".
    """

    def __init__(self, render: Render, written: str = "", keeps: int = 512) -> None:
        self._render = render
        self._written = written
        self._as_json: dict[str, bool] = {}
        # Drawn at random so that no template's own text and no user's can hold it.
        self._stem = f"\ufdd0{os.urandom(6).hex()}"
        self._layout = functools.lru_cache(maxsize=keeps)(self._rendered_layout)
        self._block = functools.lru_cache(maxsize=512)(self._found_block)
        self._opening = functools.lru_cache(maxsize=512)(self._found_opening)

    def role_text(self, earlier: Roles, role: AnyBlock) -> RoleText:
        """Texts around a block of `role` behind the closed blocks `earlier`.

        Raises InvalidRequest with the template's own words where it refuses that order.
        """
        return self._block(earlier, role)

    def _found_block(self, earlier: Roles, role: AnyBlock) -> RoleText:
        between, close = self._checked_ends(earlier, role)
        if isinstance(role, Block) and role.calls:
            close = self._close_of_called(earlier, close)
        if not earlier:
            return RoleText(between, close)
        closed = self._ends(earlier)[1]
        return RoleText(between[_common_prefix(between, closed) :], close)

    def between(self, earlier: Roles, role: AnyBlock) -> str:
        """All that stands between the content of the last of `earlier` and that of `role`, where
        what closes that block depends on what comes behind it."""
        return self._checked_ends(earlier, role)[0]

    def shows_as_json(self, earlier: Roles, role: AnyBlock) -> bool:
        """Whether the template writes the content of such a block as a JSON text, without its
        quotes (those it writes itself)."""
        kind = role_of(role)
        if kind not in self._as_json:
            probe = f'{self._stem}"\n{self._stem}'
            contents = (*("x" for _ in earlier), probe)
            text = self._render((*earlier, role), contents, False)
            self._as_json[kind] = probe not in text and json_text(probe) in text
        return self._as_json[kind]

    def generation_open(self, earlier: Roles) -> str:
        """What opens an assistant block that the model is to write from its beginning: the
        template's generation prompt, or the block's opening where there is none."""
        return self._opening(earlier)

    def _found_opening(self, earlier: Roles) -> str:
        opening = self.role_text(earlier, "assistant").open
        if not earlier or not self._accepts(earlier, True):
            return opening
        prompt = self._texts(earlier, True)[-1]
        return prompt[_common_prefix(prompt, self._ends(earlier)[1]) :] or opening

    def is_prefix_stable(self) -> bool:
        """Whether role texts around contents give just what the template renders, also when the
        model's answers become history. Orders of roles that the template refuses are left out;
        False when it refuses all that are tried."""
        accepted = [roles for roles in _PROBED if self._accepts(roles, False)]
        return bool(accepted) and all(map(self._only_appends, accepted))

    def _checked_ends(self, earlier: Roles, role: AnyBlock) -> tuple[str, str]:
        check_role(role_of(role))
        if len(earlier) >= MAX_BLOCKS:
            raise InvalidRequest(f"more than {MAX_BLOCKS} role blocks in one program")
        if len({role_of(each) for each in (*earlier, role)}) > MAX_ROLES:
            raise InvalidRequest(f"more than {MAX_ROLES} different roles in one program")
        return self._ends((*earlier, role))

    def _close_of_called(self, earlier: Roles, rest: str) -> str:
        """rest: from the end of the last argument on. What of it the output has not written; where
        the template writes calls another way, that is what closes any block of an assistant."""
        if self._written and rest.startswith(self._written):
            return rest[len(self._written) :]
        return self._ends((*earlier, ASSISTANT))[1]

    def _accepts(self, roles: Roles, add_generation_prompt: bool) -> bool:
        return not isinstance(self._found(roles, add_generation_prompt), InvalidRequest)

    def _only_appends(self, roles: Roles) -> bool:
        """Texts around k contents, appended block by block: [open 1, close 1 + open 2, ..]."""
        appended = [""]
        for k, role in enumerate(roles):
            block = self.role_text(roles[:k], role)
            if role == "assistant":
                prompted = (*appended[:-1], appended[-1] + block.open)
                if self._accepts(roles[:k], True) and self._texts(roles[:k], True) != prompted:
                    return False
            appended[-1] += block.open
            appended.append(block.close)
            whole = roles[: k + 1]
            if self._accepts(whole, False) and self._texts(whole, False) != tuple(appended):
                return False
        return True

    def _ends(self, roles: Roles) -> tuple[str, str]:
        """(text before the last block's content, text after it)."""
        try:
            texts = self._texts(roles, False)
        except InvalidRequest:
            if roles[-1] == "user":
                raise
            # Some templates fold a system block into the user block behind it.
            texts = self._texts((*roles, "user"), False)
            return texts[len(roles) - 1], ""
        return texts[-2], texts[-1]

    def _texts(self, roles: Roles, add_generation_prompt: bool) -> tuple[str, ...]:
        """The rendering of blocks with sentinels as content, cut at the sentinels."""
        texts = self._found(roles, add_generation_prompt)
        if isinstance(texts, InvalidRequest):
            raise texts
        return texts

    def _found(self, roles: Roles, add_generation_prompt: bool) -> tuple[str, ...] | InvalidRequest:
        texts = self._layout(roles, add_generation_prompt)
        if not isinstance(texts, InvalidRequest):
            return texts
        plain = tuple(ASSISTANT if _has_called(each) else each for each in roles)
        if plain == roles:
            return texts
        other = self._layout(plain, add_generation_prompt)  # a template that shows no calls
        return texts if isinstance(other, InvalidRequest) else other

    def _rendered_layout(
        self, roles: Roles, add_generation_prompt: bool
    ) -> tuple[str, ...] | InvalidRequest:
        sentinels = tuple(f"{self._stem}.{i}\ufdd1" for i in range(len(roles)))
        try:
            rest = self._render(roles, sentinels, add_generation_prompt)
        except InvalidRequest as refusal:
            return refusal
        texts = []
        for sentinel in sentinels:
            before, found, rest = rest.partition(sentinel)
            if not found or sentinel in rest:
                return InvalidRequest(
                    "the model's chat template does not render these roles one after another: "
                    + ", ".join(map(role_of, roles))
                )
            texts.append(before)
        return (*texts, rest)


def json_text(text: str) -> str:
    """`text` as it stands between the quotes of a JSON text."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _has_called(block: AnyBlock) -> bool:
    return isinstance(block, Block) and bool(block.calls)


def _common_prefix(one: str, other: str) -> int:
    differs = (i for i, (a, b) in enumerate(zip(one, other)) if a != b)
    return next(differs, min(len(one), len(other)))
