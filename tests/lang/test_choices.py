"""select(): the three methods by their formulas, and exact values (cases.md F01, F02, F04)."""

import math

import pytest

import radixserve.lang as sgl
from radixserve.lang.choices import Candidate

GREEN, LONG = " green", " counterrevolutionary"
LONG_PIECES = [" counter", "rev", "ol", "ution", "ar", "y"]
WORDS = [GREEN, *LONG_PIECES]
# After the prompt: " green" -1.2; the long word starts at -9 and is then predictable.
AFTER = dict(zip(WORDS, [-1.2, -9.0, -0.5, -0.1, -0.1, -0.1, -0.1], strict=True))
ALONE = dict(zip(WORDS, [-7.0, -12.0, -0.5, -0.1, -0.1, -0.1, -0.1], strict=True))


def grass(context, token):
    return (AFTER if "Grass" in context else ALONE)[token]


def pick(method, choices, *, prompt="Grass is usually", logprob=grass, pieces=WORDS, **options):
    @sgl.function
    def program(s):
        s += prompt
        s += sgl.select("x", choices, choices_method=method)
        s += sgl.gen("after")

    mock = sgl.Mock([""], logprob=logprob, pieces=pieces, **options)
    return program.run(backend=mock), mock


def test_default_does_not_fall_for_length():
    """Mean: -1.2 against -9.9 / 6 = -1.65."""
    state, _ = pick(sgl.token_length_normalized, [LONG, GREEN])
    assert state["x"] == GREEN
    assert state.get_meta_info("x")["scores"] == pytest.approx([-9.9 / 6, -1.2])
    assert state.get_meta_info("x")["method"] == "token_length_normalized"
    assert sgl.select("x", ["a"]).method is sgl.token_length_normalized
    assert sgl.gen("x", choices=["a"]).method is sgl.token_length_normalized


def test_a_long_tail_does_win_the_mean_when_the_formula_says_so():
    def predictable(context, token):
        return -0.01 if token in LONG_PIECES[1:] else AFTER[token] / 3

    state, _ = pick(sgl.token_length_normalized, [GREEN, LONG], logprob=predictable)
    assert state.get_meta_info("x")["scores"] == pytest.approx([-0.4, -3.05 / 6])
    assert state["x"] == GREEN
    state, _ = pick(sgl.greedy_token_selection, [GREEN, LONG], logprob=predictable)
    assert state["x"] == GREEN


def test_unconditional_gain():
    """Gains: green 5.8; the long word 3.0 / 6."""
    state, mock = pick(sgl.unconditional_likelihood_normalized, [LONG, GREEN])
    assert state["x"] == GREEN
    assert state.get_meta_info("x")["scores"] == pytest.approx([0.5, 5.8])
    assert mock.calls[0]["input"][-1]["unconditional"] is True
    entry = state.get_meta_info("x")["choices"][1]
    assert entry["unconditional_logprobs"] == [-7.0]


def test_a_token_without_an_unconditional_score_counts_as_it_is():
    rows = [
        Candidate("a", (1,), (-2.0,), (None,)),
        Candidate("b", (2, 3), (-1.0, -2.0), (None, -1.0)),
    ]
    decision = sgl.unconditional_likelihood_normalized.decide(rows)
    assert decision.meta["scores"] == [-2.0, -1.0]
    assert decision.index == 1


def test_a_select_that_nothing_stands_before_says_so():
    class NoFirst(sgl.Mock):
        def choose(self, body):
            reply = super().choose(body)
            for choice in reply["choices"]:
                choice["logprobs"][0] = None
            return reply

    @sgl.function
    def program(s):
        s += sgl.select("x", ["a", "b"])

    with pytest.raises(sgl.ProgramError, match="start of a prompt"):
        program.run(backend=NoFirst())


def test_greedy_follows_the_best_next_token():
    # "ab" has the better mean, but greedy decoding would go to "c".
    table = {"a": -1.0, "b": -0.01, "c": -0.9, "d": -5.0}
    options = {"logprob": lambda context, token: table[token], "pieces": (), "prompt": ">"}
    state, _ = pick(sgl.token_length_normalized, ["ab", "cd"], **options)
    assert state["x"] == "ab"
    state, _ = pick(sgl.greedy_token_selection, ["ab", "cd"], **options)
    assert state["x"] == "cd"
    assert state.get_meta_info("x")["scores"] == [-1.0, -0.9]


def decide(method, *rows):
    return method.decide([Candidate(str(ids), ids, logprobs) for ids, logprobs in rows])


def test_greedy_lets_an_ended_choice_compete_with_its_mean():
    longer = ((1, 2), (-0.5, -0.4))
    assert decide(sgl.greedy_token_selection, ((1,), (-0.5,)), longer).index == 1
    longer = ((1, 2), (-0.5, -0.6))
    decision = decide(sgl.greedy_token_selection, ((1,), (-0.5,)), longer)
    assert decision.index == 0
    assert decision.meta["scores"] == [-0.5, -0.6]


def test_greedy_separates_choices_by_token_not_by_equal_scores():
    rows = [((1, 5), (-1.0, -9.0)), ((2, 6), (-1.0, -0.1))]
    assert decide(sgl.greedy_token_selection, *rows).index == 0


@pytest.mark.parametrize(
    "method",
    [
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
        sgl.probability,
    ],
)
@pytest.mark.parametrize(
    "choices",
    [
        ["cart", "carton box"],
        ["a", "ab", "abc"],
        ["1", "10", "100"],
        [" yes", " yes!"],
        ["same", "same", "other"],
        ["only"],
        [""],
        ["", "x"],
        ["春天", "夏天", "冬天快乐", "🙂", "🙃"],
        [f"choice {i}" for i in range(300)],
    ],
)
def test_the_value_is_one_of_the_choices_and_only_it_enters_the_state(method, choices):
    """Every byte has another log-probability, so that each choice can win or lose."""

    def logprob(context, token):
        return -((sum(token.encode()) * 7 + len(context)) % 31) / 10 - 0.1

    state, mock = pick(method, choices, prompt="Q:", logprob=logprob, pieces=())
    assert state["x"] in choices
    scores = state.get_meta_info("x")["scores"]
    if method is sgl.probability:
        assert sum(scores) == pytest.approx(1)
        assert 0 <= state.get_meta_info("x")["outside"] <= 1
    if method is not sgl.greedy_token_selection:
        assert state["x"] == choices[scores.index(max(scores))]
    assert state.text() == "Q:" + state["x"]
    assert mock.calls[0]["input"][-1]["choices"] == choices
    known = mock.calls[1]["input"]
    assert known == [{"ids": mock.tokenizer.encode("Q:" + state["x"]), "roles": [], "open": None}]


def test_ties_go_to_the_choice_written_first():
    for method in (sgl.token_length_normalized, sgl.greedy_token_selection):
        state, _ = pick(method, ["b", "a", "b"], logprob=lambda *_: -1.0, pieces=())
        assert state["x"] == "b"


@pytest.mark.parametrize("add_bos", [False, True])
def test_scores_cover_exactly_the_tokens_of_the_choice(add_bos):
    state, mock = pick(sgl.token_length_normalized, [LONG, GREEN], add_bos=add_bos)
    encode = mock.tokenizer.encode
    for entry in state.get_meta_info("x")["choices"]:
        assert entry["ids"] == encode(entry["text"])
        assert len(entry["logprobs"]) == len(entry["ids"])
        assert 256 not in entry["ids"]
    ids = mock.calls[1]["input"][0]["ids"]
    assert ids == [256] * add_bos + encode("Grass is usually") + encode(GREEN)


def test_choices_that_merge_with_the_text_compare_from_their_common_prefix():
    def logprob(context, token):
        return {"New": -2.0, " York": -0.1, " Yorks": -0.2, "hire": -0.3}[token]

    state, mock = pick(
        sgl.token_length_normalized,
        ["ork", "orkshire"],
        prompt="New Y",
        logprob=logprob,
        pieces=["New", " York", " Yorks", "hire"],
    )
    entries = state.get_meta_info("x")["choices"]
    piece = 300
    assert [entry["ids"] for entry in entries] == [[piece + 1], [piece + 2, piece + 3]]
    assert state["x"] == "ork"
    assert state.text() == "New York"
    # The state holds the merged token once; "Y" alone is gone.
    assert mock.calls[1]["input"][0]["ids"] == [piece, piece + 1]


def test_generated_ids_are_not_merged_with_a_choice():
    @sgl.function
    def program(s):
        s += "Q" + sgl.gen("a")
        s += sgl.select("x", ["lo", "p"])

    mock = sgl.Mock(["hel"], pieces=["hello"])
    state = program.run(backend=mock)
    assert mock.calls[1]["input"][0]["ids"] == mock.tokenizer.encode("Qhel")
    assert state.text() in ("Qhello", "Qhelp")


def test_warm_and_cold_pick_the_same():
    @sgl.function
    def program(s):
        s += "Grass is usually" + sgl.select("x", [LONG, GREEN])

    mock = sgl.Mock(logprob=grass, pieces=WORDS)
    cold, warm = program.run(backend=mock), program.run(backend=mock)
    assert cold["x"] == warm["x"] == GREEN
    assert cold.get_meta_info("x")["scores"] == warm.get_meta_info("x")["scores"]
    assert warm.get_meta_info("x")["cached_tokens"] > cold.get_meta_info("x")["cached_tokens"]


def test_a_method_of_your_own():
    class Last:
        name = "last"
        needs_unconditional = False

        def decide(self, candidates):
            return sgl.choices.Decision(len(candidates) - 1, {"scores": []})

    state, _ = pick(Last(), ["a", "b", "c"], logprob=lambda *_: -1.0, pieces=())
    assert state["x"] == "c"
    assert state.get_meta_info("x")["method"] == "last"


def test_select_is_one_request():
    state, mock = pick(sgl.token_length_normalized, [LONG, GREEN])
    assert len(mock.calls) == 2
    assert mock.calls[0]["program"]["call"] == "0"
    assert all(math.isfinite(score) for score in state.get_meta_info("x")["scores"])


def logs(*rows):
    return [(ids, tuple(math.log(p) for p in parts)) for ids, parts in rows]


def test_probability_sums_to_one_with_what_is_outside():
    rows = logs(((1,), (0.25,)), ((2, 3), (0.5, 0.5)), ((4,), (0.125,)))
    decision = decide(sgl.probability, *rows)
    assert decision.meta["scores"] == pytest.approx([0.4, 0.4, 0.2])
    assert decision.meta["outside"] == pytest.approx(0.375)
    assert decision.index == 0  # a tie goes to the first


def test_probability_of_a_choice_is_without_that_of_longer_ones():
    """The worked example: a text that begins with "10" is the choice "10", not "1"."""
    rows = logs(((1,), (0.5,)), ((1, 0), (0.5, 0.6)), ((2,), (0.2,)))
    decision = decide(sgl.probability, *rows)
    assert decision.meta["scores"] == pytest.approx([2 / 7, 3 / 7, 2 / 7])
    assert decision.meta["outside"] == pytest.approx(0.3)
    assert decision.index == 1
    # Three in a row: each keeps what the next does not hold.
    rows = logs(((1,), (0.8,)), ((1, 1), (0.8, 0.5)), ((1, 1, 1), (0.8, 0.5, 0.5)))
    assert decide(sgl.probability, *rows).meta["scores"] == pytest.approx([0.5, 0.25, 0.25])


def test_probability_takes_equal_choices_as_one():
    rows = logs(((1,), (0.3,)), ((1,), (0.3,)), ((2,), (0.2,)))
    decision = decide(sgl.probability, *rows)
    assert decision.meta["scores"] == pytest.approx([0.3, 0.3, 0.4])
    assert decision.index == 0  # 0.6 together


def test_probability_of_long_and_of_impossible_choices():
    long = (-500.0,) * 4
    decision = decide(sgl.probability, ((1,) * 4, (*long[:3], -499.0)), ((2,) * 4, long))
    assert decision.meta["scores"] == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e)])
    assert decision.meta["outside"] == pytest.approx(1)
    never = float("-inf")
    decision = decide(sgl.probability, ((1,), (never,)), ((2,), (never,)))
    assert decision.meta["scores"] == pytest.approx([0.5, 0.5])
    decision = decide(sgl.probability, ((), ()), ((2,), (math.log(0.25),)))
    assert decision.meta["scores"] == pytest.approx([0.75, 0.25])
