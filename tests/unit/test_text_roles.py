"""What opens and closes a role's block, read off renderings of the model's own template."""

from __future__ import annotations

import pytest

from radixserve.errors import InvalidRequest
from radixserve.text.chat import ChatTemplate
from radixserve.text.roles import MAX_BLOCKS, MAX_ROLES, RoleText
from tests.chat_templates import APPENDING, DEFAULT_SYSTEM, FOLDING, NO_SYSTEM, REWRITING
from tests.tiny_tokenizer import CHATML

TOKENS = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
ORDERS = [
    ("user", "assistant"),
    ("user", "assistant", "user", "assistant"),
    ("system", "user", "assistant", "user"),
    ("system", "system", "user"),
    ("assistant", "user"),
    ("user", "tool", "tool", "assistant"),
]
REFUSED = {
    ("no system", ORDERS[2]): "System role not supported",
    ("no system", ORDERS[3]): "System role not supported",
    ("folding", ORDERS[3]): "roles must alternate user and assistant",
    ("folding", ORDERS[4]): "roles must alternate user and assistant",
    ("folding", ORDERS[5]): "roles must alternate user and assistant",
}


def chat_of(template: str) -> ChatTemplate:
    return ChatTemplate({"default": template}, TOKENS)


def written(chat: ChatTemplate, messages: list[dict[str, str]]) -> str:
    """The conversation as a program writes it, block by block."""
    text = ""
    for i, message in enumerate(messages):
        earlier = tuple(before["role"] for before in messages[:i])
        block = chat.role_text(earlier, message["role"])
        text += block.open + message["content"] + block.close
    return text


@pytest.mark.parametrize("name", APPENDING)
@pytest.mark.parametrize("roles", ORDERS)
def test_blocks_written_one_by_one_are_the_rendering(name, roles):
    chat = chat_of(APPENDING[name])
    messages = [{"role": role, "content": f"word {i}"} for i, role in enumerate(roles)]
    refusal = REFUSED.get((name, roles))
    if refusal:
        with pytest.raises(InvalidRequest, match=f"^{refusal}$"):
            written(chat, messages)
        return
    whole = chat.render(messages, add_generation_prompt=False)
    assert written(chat, messages) == whole
    if roles[-1] == "user":
        asked = chat.render(messages, add_generation_prompt=True)
        assert whole + chat.generation_open(roles) == asked


def test_the_default_system_block_comes_in_once():
    chat = chat_of(DEFAULT_SYSTEM)
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    assert chat.role_text((), "user") == RoleText(f"{system}<|im_start|>user\n", "<|im_end|>\n")
    assert chat.role_text((), "system").open == "<|im_start|>system\n"
    assert chat.role_text(("user",), "assistant").open == "<|im_start|>assistant\n"


def test_a_folded_system_block_is_written_before_its_user_block():
    chat = chat_of(FOLDING)
    assert chat.role_text((), "system") == RoleText("<s>[INST] ", "")
    assert chat.role_text(("system",), "user") == RoleText("\n\n", " [/INST]")
    assert chat.role_text((), "user") == RoleText("<s>[INST] ", " [/INST]")


@pytest.mark.parametrize(
    ("template", "earlier", "role", "words"),
    [
        (FOLDING, ("user",), "user", "^roles must alternate user and assistant$"),
        (FOLDING, (), "assistant", "^roles must alternate user and assistant$"),
        (NO_SYSTEM, (), "system", "^System role not supported$"),
        ("{{ messages[0].role }}", (), "user", "does not render these roles"),
        ("{{ messages[0].content * 2 }}", (), "user", "does not render these roles"),
    ],
)
def test_a_template_refuses_in_its_own_words(template, earlier, role, words):
    with pytest.raises(InvalidRequest, match=words):
        chat_of(template).role_text(earlier, role)


def test_text_already_written_is_never_taken_back():
    """Behind a block that a longer conversation renders anew, only new text is added."""
    chat = chat_of(REWRITING)
    assert chat.role_text(("user",), "assistant") == RoleText(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n", "<|im_end|>\n"
    )
    assert chat.role_text(("user", "assistant"), "user").open == "<|im_start|>user\n"
    ends = chat_of(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
        "{{ '</>!' if loop.last else '</>;' }}{% endfor %}"
    )
    assert ends.role_text((), "user") == RoleText("[user]", "</>!")
    assert ends.role_text(("user",), "user") == RoleText(";[user]", "</>!")
    assert not ends.prefix_stable


def test_line_breaks_between_blocks_only_belong_to_the_block_that_follows():
    chat = chat_of(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
        "{{ '\n' if not loop.last }}{% endfor %}"
    )
    assert chat.role_text((), "user") == RoleText("[user]", "")
    assert chat.role_text(("user",), "user") == RoleText("\n[user]", "")


def test_an_assistant_block_to_be_written_opens_with_the_generation_prompt():
    thinking = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
    assert chat_of(thinking).generation_open(("user",)) == "<|im_start|>assistant\n<think>\n"
    assert chat_of(thinking).role_text(("user",), "assistant").open == "<|im_start|>assistant\n"
    assert not chat_of(thinking).prefix_stable
    silent = chat_of(CHATML.split("{% if add_generation_prompt")[0])
    assert silent.generation_open(("user",)) == "<|im_start|>assistant\n"
    assert silent.generation_open(()) == "<|im_start|>assistant\n"
    assert chat_of(REWRITING).generation_open(("user",)) == "<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize("role", ["", "a b", "<|im_end|>", "user\n", "é", "x" * 65, None, 3])
def test_role_names_are_words(role):
    with pytest.raises(InvalidRequest, match="a role is a word"):
        chat_of(CHATML).role_text((), role)


def test_blocks_of_one_program_are_bounded():
    with pytest.raises(InvalidRequest, match=f"more than {MAX_BLOCKS} role blocks"):
        chat_of(CHATML).role_text(("user",) * MAX_BLOCKS, "user")


def test_the_number_of_different_roles_is_bounded():
    roles = tuple(f"role{i}" for i in range(MAX_ROLES))
    chat = chat_of(CHATML)
    assert chat.role_text(roles * 2, roles[0]).open
    with pytest.raises(InvalidRequest, match=f"more than {MAX_ROLES} different roles"):
        chat.role_text(roles, "another")


def test_role_texts_are_rendered_once():
    """A template that counts its renderings in the text gives the same text again."""
    chat = chat_of("{{ strftime_now('%f') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    first = chat.role_text((), "user")
    assert all(chat.role_text((), "user") == first for _ in range(50))
