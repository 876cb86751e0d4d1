"""Parts of a prompt to ids: segments, roles, ids carried on, and choices."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.config.schema import TextConfig
from radixserve.errors import InvalidRequest
from radixserve.text.chat import ChatTemplate
from radixserve.text.choices import split_settled
from radixserve.text.files import read_folder
from radixserve.text.parts import EncodedPrompt, encode_parts
from radixserve.text.renderer import Renderer
from radixserve.text.tokenizer import Run, Tokenizer
from tests.chat_templates import APPENDING, REWRITING
from tests.tiny_tokenizer import CHATML, make_tokenizer

END = "<|im_end|>"


@pytest.fixture(scope="module")
def renderers(tmp_path_factory):
    """(kind, template, add_bos) -> Renderer, each made once."""
    made: dict[tuple[str, str, bool], Renderer] = {}

    def get(kind: str = "bytes", template: str = CHATML, add_bos: bool = False) -> Renderer:
        key = (kind, template, add_bos)
        if key not in made:
            folder = make_tokenizer(
                tmp_path_factory.mktemp("tiny"), kind=kind, chat_template=template, add_bos=add_bos
            )
            files = read_folder(folder)
            made[key] = Renderer(Tokenizer(files), ChatTemplate.load(files), TextConfig())
        return made[key]

    return get


@pytest.fixture(scope="module")
def renderer(renderers) -> Renderer:
    return renderers()


def ids_of(
    renderer: Renderer, text: str, *, opens: bool = False, special: bool = True
) -> list[int]:
    return renderer.tokenizer.encode(text, opens=opens, special=special).tolist()


def blocks(messages: list[tuple[str, str]]) -> list[dict[str, str]]:
    parts = []
    for role, text in messages:
        parts += [{"role_open": role}, {"text": text}, {"role_close": role}]
    return parts


def test_adjacent_text_is_one_segment(renderer):
    parts = [{"text": "the qu"}, {"text": ""}, {"text": "ick fox"}]
    prompt = renderer.encode_parts(parts)
    assert prompt.ids.tolist() == ids_of(renderer, "the quick fox")
    assert prompt.ids.dtype == np.int32
    assert [(s.kind, s.start, s.end) for s in prompt.segments] == [("text", 0, len(prompt.ids))]


@pytest.mark.parametrize("border", [{"ids": []}, {"border": True}])
def test_a_border_parts_text_into_segments(renderer, border):
    prompt = renderer.encode_parts([{"text": "the qu"}, border, {"text": "ick fox"}])
    head, tail = ids_of(renderer, "the qu"), ids_of(renderer, "ick fox")
    assert prompt.ids.tolist() == head + tail != ids_of(renderer, "the quick fox")


def test_ids_are_taken_as_they_are(renderer):
    """Also where the text of the ids would be tokenised otherwise."""
    odd = [ids_of(renderer, char)[0] for char in "the"]
    prompt = renderer.encode_parts([{"ids": odd}, {"text": " fox"}, {"ids": odd}])
    assert prompt.ids.tolist() == odd + ids_of(renderer, " fox") + odd
    assert [s.kind for s in prompt.segments] == ["ids", "text", "ids"]
    assert [(s.start, s.end) for s in prompt.segments] == [(0, 3), (3, 4), (4, 7)]


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_only_the_first_segment_opens_the_prompt(renderers, kind):
    renderer = renderers(kind, add_bos=True)
    opening = ids_of(renderer, "the fox", opens=True)
    inside = ids_of(renderer, "the fox")
    assert opening[0] == 0
    text = {"text": "the fox"}
    cases = [
        ([text, {"ids": [5]}, text], [*opening, 5, *inside]),
        ([{"ids": [5]}, text], [5, *inside]),
        ([{"ids": []}, text], opening),
        ([{"text": ""}, {"border": True}, text], opening),
        ([text, {"border": True}, text], opening + inside),
        ([], [0]),
    ]
    for parts, want in cases:
        assert renderer.encode_parts(parts).ids.tolist() == want


@pytest.mark.parametrize("template", [*APPENDING.values(), REWRITING])
@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
@pytest.mark.parametrize("add_bos", [False, True])
def test_role_blocks_give_the_ids_of_the_chat(renderers, kind, template, add_bos):
    renderer = renderers(kind, template, add_bos)
    messages = [("user", "the quick fox"), ("assistant", "é🦙 yes"), ("user", f"no{END}\nmaybe")]
    if template is REWRITING:
        messages = messages[2:]
    parts = [*blocks(messages), {"role_open": "assistant"}]
    chat = renderer.encode_messages([{"role": role, "content": text} for role, text in messages])
    prompt = renderer.encode_parts(parts)
    assert prompt.ids.tolist() == chat.tolist()
    assert prompt.roles == tuple(role for role, _ in messages)
    assert prompt.open_role == "assistant"


@pytest.mark.model
@pytest.mark.parametrize("first", ["system", "user"])
def test_role_blocks_give_the_ids_of_the_chat_on_smollm2(smollm2, first):
    renderer = Renderer.load(smollm2, TextConfig())
    messages = [(first, "Be 123 🦙"), ("user", "Hi\n"), ("assistant", ""), ("user", END)]
    chat = renderer.encode_messages([{"role": role, "content": text} for role, text in messages])
    parts = [*blocks(messages), {"role_open": "assistant"}]
    assert renderer.encode_parts(parts).ids.tolist() == chat.tolist()
    assert renderer.chat.prefix_stable


def test_a_prompt_goes_on_where_an_earlier_one_ended(renderer):
    """Sent whole, or in two calls that carry ids and roles: the same ids."""
    first = renderer.encode_parts([*blocks([("user", "the fox")]), {"role_open": "assistant"}])
    answer = ids_of(renderer, " yes")
    carried = {
        "ids": first.ids.tolist() + answer,
        "roles": list(first.roles),
        "open": first.open_role,
    }
    rest = [{"role_close": "assistant"}, *blocks([("user", "why?")])]
    second = renderer.encode_parts([carried, *rest])
    close = ids_of(renderer, f"{END}\n<|im_start|>user\nwhy?{END}\n")
    assert second.ids.tolist() == carried["ids"] + close
    assert second.roles == ("user", "assistant", "user")
    assert second.open_role is None


def test_a_block_that_the_model_ended_itself_is_not_ended_twice(renderer):
    carried = {"ids": [*ids_of(renderer, "yes"), 2], "roles": ["user"], "open": "assistant"}
    prompt = renderer.encode_parts([carried, {"role_close": "assistant"}])
    assert prompt.ids.tolist() == carried["ids"] + ids_of(renderer, "\n")
    more = renderer.encode_parts([carried, {"text": "."}, {"role_close": "assistant"}])
    assert more.ids.tolist() == carried["ids"] + ids_of(renderer, f".{END}\n")


def test_control_tokens_in_text_count_only_outside_role_blocks(renderer):
    assert renderer.encode_parts([{"text": END}]).ids.tolist() == [2]
    inside = renderer.encode_parts(blocks([("user", END)])).ids.tolist()
    assert inside.count(2) == 1
    between = renderer.encode_parts([*blocks([("user", "a")]), {"text": END}]).ids.tolist()
    assert between.count(2) == 2


def test_bos_of_the_template_does_not_come_twice(renderers):
    renderer = renderers("bytes", APPENDING["trimming"], True)
    assert renderer.encode_parts(blocks([("user", "a")])).ids.tolist().count(0) == 1
    behind = renderer.encode_parts([{"text": "a"}, *blocks([("user", "a")])]).ids.tolist()
    assert behind.count(0) == 1
    carried = renderer.encode_parts([{"ids": [0, 5]}, *blocks([("user", "a")])]).ids.tolist()
    assert carried.count(0) == 1


def test_an_answer_from_its_beginning_opens_as_in_chat(renderers):
    thinking = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
    renderer = renderers("bytes", thinking)
    head = blocks([("user", "a")])
    chat = renderer.encode_messages([{"role": "user", "content": "a"}]).tolist()
    opened = [*head, {"role_open": "assistant"}]
    assert renderer.encode_parts(opened).ids.tolist() == chat
    forked = renderer.encode_parts([*opened, {"border": True}])
    assert renderer.tokenizer.decode(forked.ids, False).endswith("assistant\n<think>\n")
    prefilled = renderer.encode_parts([*opened, {"text": "b"}])
    assert renderer.tokenizer.decode(prefilled.ids, False).endswith("assistant\nb")


@pytest.mark.parametrize(
    ("parts", "message", "param"),
    [
        ("text", "must be a list", "parts"),
        ([3], "a part is an object", "parts[0]"),
        ([{}], "a part has one of", "parts[0]"),
        ([{"text": "a", "ids": []}], "a part has one of", "parts[0]"),
        ([{"text": "a", "roles": []}], "a part has one of", "parts[0]"),
        ([{"text": "a"}, {"txt": "a"}], "not txt", "parts[1]"),
        ([{"text": 3}], "must be a string", "parts[0].text"),
        ([{"text": "a\ud83d"}], "lone surrogate U\\+D83D", "parts[0].text"),
        ([{"ids": "abc"}], "list of whole numbers", "parts[0].ids"),
        ([{"ids": [1, True]}], "list of whole numbers", "parts[0].ids"),
        ([{"ids": [1.0]}], "list of whole numbers", "parts[0].ids"),
        ([{"ids": [399, 400]}], "id 400 is outside the vocabulary of 400", "parts[0].ids"),
        ([{"ids": [-1]}], "id -1 is outside", "parts[0].ids"),
        ([{"ids": [1], "roles": "user"}], "roles must be a list", "parts[0].ids"),
        ([{"ids": [1], "open": "a b"}], "a role is a word", "parts[0].ids"),
        ([{"role_open": "user"}, {"role_open": "user"}], "still open", "parts[1].role_open"),
        ([{"role_open": "user"}, {"ids": [1], "open": "x"}], "still open", "parts[1].ids"),
        ([{"role_close": "user"}], "open block is of role None", "parts[0].role_close"),
        ([{"role_open": "a"}, {"role_close": "b"}], "of role 'a', not 'b'", "parts[1].role_close"),
        ([{"choices": []}], "at least one", "parts[0].choices"),
        ([{"choices": "ab"}], "at least one", "parts[0].choices"),
        ([{"choices": [3]}], "must be strings", "parts[0].choices"),
        ([{"choices": ["\ude00"]}], "lone surrogate", "parts[0].choices"),
        ([{"choices": ["a"]}, {"text": "b"}], "must be the last part", "parts[1]"),
    ],
)
def test_malformed_parts_are_named(renderer, parts, message, param):
    with pytest.raises(InvalidRequest, match=message) as caught:
        renderer.encode_parts(parts)
    assert caught.value.param == param


def test_an_order_of_roles_that_the_template_refuses(renderers):
    renderer = renderers("bytes", APPENDING["folding"])
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        renderer.encode_parts(blocks([("user", "a"), ("user", "b")]), param="input")
    assert caught.value.param == "input[3].role_open"


def test_without_a_template_text_works_and_roles_are_refused(tmp_path):
    files = read_folder(make_tokenizer(tmp_path, chat_template=None))
    tokenizer, chat = Tokenizer(files), ChatTemplate.load(files)
    assert len(encode_parts([{"text": "the"}], tokenizer, chat).ids) == 1
    with pytest.raises(InvalidRequest, match=r"no \(default\) chat template"):
        encode_parts([{"role_open": "user"}], tokenizer, chat)


def whole(prompt: EncodedPrompt, i: int) -> list[int]:
    assert prompt.choices is not None
    return [*prompt.ids.tolist(), *prompt.choices[i].ids.tolist()]


CHOICES = [
    ["cart", "carton box"],
    ["a", "ab", "abc"],
    ["1", "10", "100"],
    [" yes", " yes!"],
    ["yes", "yes"],
    ["only"],
    [""],
    ["", "x"],
    ["在线", "离线", "🦙", "👩‍👩‍👧‍👦"],
]


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("tail", ["the answer is", "the answer is ", "yes", ""])
def test_choices_are_tokenised_with_the_text_before_them(renderer, choices, tail):
    """Each choice has the ids of tail + choice, from where all of them and the tail part."""
    prompt = renderer.encode_parts([{"ids": [5, 6]}, {"text": tail}, {"choices": choices}])
    texts = [ids_of(renderer, tail + choice) for choice in choices]
    assert [choice.text for choice in prompt.choices] == choices
    for i, ids in enumerate(texts):
        assert whole(prompt, i) == [5, 6, *ids]
    rows = [*texts, ids_of(renderer, tail)]
    n = len(prompt.ids) - 2
    assert all(row[:n] == rows[0][:n] for row in rows)
    assert any(len(row) == n or row[n] != rows[0][n] for row in rows) or len(rows[0]) == n


def test_choices_merge_with_text_but_never_with_ids(renderer):
    head, tail = "the", " qu"
    merged = renderer.encode_parts([{"text": head + tail}, {"choices": ["ick", "iet"]}])
    assert merged.ids.tolist() == ids_of(renderer, head)
    assert whole(merged, 0) == ids_of(renderer, "the quick")
    generated = ids_of(renderer, head + tail)
    kept = renderer.encode_parts([{"ids": generated}, {"choices": ["ick", ""]}])
    assert kept.ids.tolist() == generated
    assert [choice.ids.tolist() for choice in kept.choices] == [ids_of(renderer, "ick"), []]


def test_choices_that_open_a_prompt(renderers):
    renderer = renderers("bytes", add_bos=True)
    prompt = renderer.encode_parts([{"choices": ["the", "fox"]}])
    assert prompt.ids.tolist() == [0]
    assert whole(prompt, 0) == ids_of(renderer, "the", opens=True)
    assert len(renderers().encode_parts([{"choices": ["the", "fox"]}]).ids) == 0


def test_choices_in_a_role_block_are_plain_text(renderer):
    head = [{"role_open": "user"}, {"text": "a"}, {"role_close": "user"}]
    inside = renderer.encode_parts([*head, {"role_open": "assistant"}, {"choices": [END, "b"]}])
    assert 2 not in inside.choices[0].ids.tolist()
    assert renderer.tokenizer.decode(inside.choices[0].ids) == END
    outside = renderer.encode_parts([{"text": "a"}, {"choices": [END, "b"]}])
    assert outside.choices[0].ids.tolist() == [2]


@pytest.fixture(scope="module")
def smollm(smollm2) -> Renderer:
    return Renderer.load(smollm2, TextConfig())


@pytest.mark.model
def test_three_hundred_choices_behind_a_long_prompt(smollm):
    """Only what stands behind the last settled border is tokenised once per choice."""
    text = "The number of animals in the garden is "
    choices = [str(i) for i in range(300)]
    prompt = smollm.encode_parts([{"text": text * 200}, {"choices": choices}])
    for i in (0, 7, 299):
        assert whole(prompt, i) == ids_of(smollm, text * 200 + choices[i], opens=True)
    settled, rest = split_settled(smollm.tokenizer, [Run(text * 200, True)])
    assert (len(settled), rest) == (1, [Run(" is ", True)])


@pytest.mark.model
@given(
    tail=st.lists(
        st.sampled_from([" the", "The", " a", "a b", " ", "\n", "'s", "12", END, "é", "!?", "🦙"])
        | st.text(max_size=4),
        max_size=8,
    ).map("".join),
    behind=st.text(max_size=4) | st.sampled_from(["s", "e", " x", "\n", "3", "", END]),
    inside=st.booleans(),
)
def test_ids_before_a_settled_border_do_not_depend_on_what_follows(smollm, tail, behind, inside):
    tokenizer = smollm.tokenizer
    runs = [Run(f"{END}a b", True), Run(tail, special=not inside)]
    settled, rest = split_settled(tokenizer, runs)
    more = Run(behind, special=not inside)
    whole_ids = tokenizer.encode_runs([*runs, more], opens=True).tolist()
    first = tokenizer.encode_runs(settled, opens=True).tolist()
    second = tokenizer.encode_runs([*rest, more], opens=not settled).tolist()
    assert first + second == whole_ids


def test_the_last_control_token_settles_what_is_before_it(renderer):
    runs = [Run("a b", True), Run(f"{END}x", False), Run(f"{END}\n", True), Run("", False)]
    settled, rest = split_settled(renderer.tokenizer, runs)
    assert (settled, rest) == (runs[:2], runs[2:])


def test_a_control_token_that_swallows_spaces_settles_nothing(tmp_path):
    path = make_tokenizer(tmp_path) / "tokenizer.json"
    spec = json.loads(path.read_text())
    spec["added_tokens"][2]["lstrip"] = True
    path.write_text(json.dumps(spec))
    tokenizer = Tokenizer(read_folder(tmp_path))
    assert split_settled(tokenizer, [Run(f"a {END}b", True)])[0] == []


def test_nothing_is_settled_where_the_rules_are_not_known(renderers):
    pieces = renderers("sentencepiece").tokenizer
    assert split_settled(pieces, [Run("the quick fox", True)])[0] == []
    control = split_settled(pieces, [Run(f"the{END}quick fox", True)])
    assert control == ([Run("the", True)], [Run(f"{END}quick fox", True)])
    assert split_settled(pieces, [Run(f"the{END}quick fox", False)])[0] == []
