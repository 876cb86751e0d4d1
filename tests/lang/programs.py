"""Programs as people write them, each with what must hold of its result on any backend.

They are small: a random model of three layers runs them too. What a check cannot know (the model's
words) it takes from the state.
"""

import dataclasses
import enum
import json
import re
from collections.abc import Callable
from typing import Any

import radixserve.lang as sgl

SHORT = 6


@dataclasses.dataclass
class Case:
    program: sgl.Program
    args: dict[str, Any]
    check: Callable[[Any], object]

    def __repr__(self):
        return self.program.__name__


CASES: list[Case] = []


def case(check, **args):
    """The program is run with `args`; check(state) is true, or asserts."""

    def add(func):
        CASES.append(Case(sgl.function(func), args, check))
        return CASES[-1].program

    return add


@case(lambda s: s.text().endswith(s["answer"]), question="Where is the fox?")
def few_shot_qa(s, question):
    s += "Q: Where is the dog?\nA: At home.\nQ: Where is the cat?\nA: On the roof.\n"
    s += f"Q: {question}\nA:" + sgl.gen("answer", stop="\n")


def ends_at_a_pattern(s):
    matched = s.get_meta_info("x")["finish_reason"].get("matched")
    found = [pattern for pattern in (r"[a-z]{2}", r"\d\d") if re.search(pattern, s["x"])]
    return found == ([matched] if isinstance(matched, str) else [])


@case(ends_at_a_pattern)
def stop_at_a_pattern(s):
    s += "the quick brown" + sgl.gen("x", stop_regex=[r"[a-z]{2}", r"\d\d"]) + " and more"


@case(lambda s: [m["role"] for m in s.messages()] == ["system", *["user", "assistant"] * 2])
def multi_turn(s):
    s += sgl.system("be brief")
    s += sgl.user("a tip?") + sgl.assistant(sgl.gen("one"))
    s += sgl.user("another?") + sgl.assistant(sgl.gen("two"))


@case(lambda s: s["pick"] in ("fox", "dog") and s.text() == f"the quick brown {s['pick']}.")
def select_one(s):
    s += "the quick brown " + sgl.select("pick", ["fox", "dog"]) + "."


@case(lambda s: s["pick"] in ("a", "ab", "abc"))
def choices_in_gen(s):
    s += "letters: " + sgl.gen("pick", choices=["a", "ab", "abc"])


@case(lambda s: sum(s.get_meta_info("pick")["scores"]) - 1 < 1e-6)
def select_by_probability(s):
    s += "1, 2, " + sgl.select("pick", ["3", "4", "34"], choices_method=sgl.probability)


@case(lambda s: s["pick"] in ("yes", "no"))
def select_by_gain(s):
    method = sgl.unconditional_likelihood_normalized
    s += sgl.user("is it so?")
    s += sgl.assistant(sgl.select("pick", ["yes", "no"], choices_method=method))


@case(lambda s: int(s["n"]) or True)
def whole_number(s):
    s += "The number of hours in a day is " + sgl.gen_int("n", max_tokens=8)


@case(lambda s: re.fullmatch(r'"[\w\d\s]*"?', s["w"]))
def quoted_string(s):
    s += "The word is " + sgl.gen_string("w", max_tokens=8)


@case(lambda s: float(s["x"]) is not None and s["b"] in ("True", "False"))
def dtypes(s):
    s += "pi is " + sgl.gen("x", dtype=float, max_tokens=6)
    s += " and that is " + sgl.gen("b", dtype=bool, max_tokens=6)


@case(lambda s: re.fullmatch(r"v[0-9]\.[0-9]", s["version"]))
def regex(s):
    s += "released as " + sgl.gen("version", regex=r"v[0-9]\.[0-9]", max_tokens=12)


@case(lambda s: s["ip"] == f"{s['a']}.{s['b']}" and s.text() == f"address {s['ip']};")
def pieces_in_a_scope(s):
    s += "address "
    with s.var_scope("ip"):
        s += sgl.gen("a", regex="[0-9]{1,3}", max_tokens=6) + "."
        s += sgl.gen("b", regex="[0-9]{1,3}", max_tokens=6)
    s += ";"


@case(lambda s: json.loads(s["card"])["age"] == s["age"])
def json_in_pieces(s):
    s += "a card: "
    with s.var_scope("card"):
        s += '{"name": "Ada", "age": ' + sgl.gen("age", schema=int, max_tokens=16) + "}"


@case(lambda s: set(json.loads(s["doc"])) == {"ok"})
def json_schema(s):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    s += "status: " + sgl.gen("doc", json_schema=schema, max_tokens=32)


@case(lambda s: s["word"] in ("north", "south"))
def one_of_texts(s):
    s += "turn " + sgl.gen("word", choice=["north", "south"], max_tokens=12)


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


@dataclasses.dataclass
class Review:
    mood: Mood
    stars: int


@case(lambda s: isinstance(s["review"], Review) and isinstance(s["mood"], Mood))
def typed(s):
    s += sgl.user("review it")
    s += sgl.assistant(sgl.gen("review", schema=Review, max_tokens=64))
    s += sgl.user("in a word?")
    s += sgl.assistant(sgl.gen("mood", schema=Mood, max_tokens=12))


@case(lambda s: all(isinstance(flag, bool) for flag in s["flags"]) and len(s["flags"]) == 3)
def typed_and_several(s):
    s += "so it is " + sgl.gen("flags", schema=bool, n=3, max_tokens=8)


@case(lambda s: s["expert"] in s.text() and s["answer"])
def expert_answer(s):
    s += sgl.user("Who knows about foxes?")
    s += sgl.assistant("The expert is " + sgl.gen("expert", max_tokens=3, stop=["."]))
    s += sgl.user(f"What would {s['expert']} say?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=SHORT, ignore_eos=True))


@case(lambda s: s.ret_value == len(s["query"]) and f"[{s.ret_value}]" in s.text())
def tool_in_the_middle(s):
    s += "the quick brown " + sgl.gen("query", max_tokens=3)
    length = len(s["query"])  # the tool
    s += f" [{length}] so " + sgl.gen("answer")
    return length


@case(lambda s: 1 <= s.ret_value <= 4 and f"Step {s.ret_value}" in s.text())
def react_loop(s):
    s += "Question: where is the fox?\n"
    for step in range(1, 5):
        s += f"Step {step}: " + sgl.gen("thought", stop="\n") + "\n"
        s += "Action: " + sgl.select("action", ["Search", "Finish"])
        if s["action"] == "Finish":
            break
        s += f"\nFound: {step} foxes\n"
    return step


@case(lambda s: len(s["tip"]) == 3 and s.text().endswith(s["summary"]))
def fork_and_join(s):
    s += "tips about dogs"
    g = s.fork(3)
    g += lambda i: f", tip {i}:" + sgl.gen("tip", stop=["\n", "."])
    g.join()
    s += " | ".join(s["tip"]) + " in short:" + sgl.gen("summary")


@case(lambda s: s["x"][0] == s["x"][1])
def equal_forks_say_the_same(s):
    s += "the quick brown"
    g = s.fork(2)
    g += sgl.gen("x")
    g.join()


@case(lambda s: [len(each) for each in s["leaf"]] == [2, 2])
def forks_of_forks(s):
    s += "think:"
    outer = s.fork(2)
    for i, child in enumerate(outer):
        child += f" way {i}" + sgl.gen("way", max_tokens=2)
        inner = child.fork(2)
        inner += [" yes" + sgl.gen("leaf", max_tokens=2), " no" + sgl.gen("leaf", max_tokens=2)]
        inner.join()
    outer.join()


@case(lambda s: s["best"] in ("0", "1") and s.ret_value == s["plan"][int(s["best"])])
def tree_of_thought(s):
    s += "plan the walk:"
    g = s.fork(2)
    g += lambda i: f" plan {i}" + sgl.gen("plan", max_tokens=4)
    g.join()
    s += "".join(f"\n{i}: {plan}" for i, plan in enumerate(s["plan"]))
    s += "\nbest: " + sgl.select("best", ["0", "1"])
    return s["plan"][int(s["best"])]


@case(lambda s: len(s["points"]) == len(s.ret_value))
def skeleton_of_thought(s):
    s += sgl.user("three points on foxes")
    s += sgl.assistant(sgl.gen("skeleton", max_tokens=SHORT))
    points = (s["skeleton"].split() or ["none"])[:3]
    g = s.fork(len(points))
    for child, point in zip(g, points):
        child += sgl.user(f"expand {point}") + sgl.assistant(sgl.gen("points", max_tokens=3))
    g.join()
    return points


@case(lambda s: all(1 <= int(each) <= 5 for each in s["score"]) and len(s["score"]) == 2)
def judge(s):
    s += sgl.system("you judge essays") + sgl.user("essay: the dog sat")
    g = s.fork(2)
    for child, what in zip(g, ("style", "content")):
        child += sgl.user(f"score its {what}")
        child += sgl.assistant(sgl.gen("score", regex="[1-5]", max_tokens=4))
    g.join()


@case(lambda s: len(s["found"]) == 3 and s["final"] is not None)
def rag(s):
    s += "documents:\nfoxes are quick.\ndogs are lazy.\n"
    g = s.fork(3)
    for child, word in zip(g, ("fox", "dog", "cat")):
        child += f"about {word}: " + sgl.gen("found", max_tokens=4)
    g.join()
    s += f"so: {'; '.join(s['found'])}" + sgl.gen("final")


@sgl.function
def helper(s, word):
    s += f"<{word}>" + sgl.gen("inner", max_tokens=2)
    return word.upper()


@case(lambda s: s.ret_value == "FOX" and "<fox>" in s.text() and "inner" in s)
def nested_call(s):
    s += "the "
    result = helper(s, "fox")
    s += " end"
    return result


@case(lambda s: s.text().startswith("the <dog>") and s.text().endswith("end"))
def nested_expression(s):
    s += "the " + helper("dog") + "end"


@case(lambda s: s["x"] == [s.ret_value] and s.text() == "base")
def copy(s):
    s += "base"
    with s.copy() as scratch:
        scratch += " scratch" + sgl.gen("x")
        return scratch["x"]


@case(lambda s: len(s["x"]) == 3 and s["y"] is not None)
def several_outputs(s):
    s += "the quick" + sgl.gen("x", n=3) + sgl.gen("y")


@case(lambda s: len(s.get_meta_info("x")["output_token_logprobs"]) > 0)
def logprobs(s):
    s += "the quick" + sgl.gen("x", return_logprob=True, top_logprobs_num=2)


@case(lambda s: s.get_meta_info("x")["completion_tokens"] >= 4)
def least_tokens(s):
    s += "the quick" + sgl.gen("x", min_tokens=4, max_tokens=8)


@case(lambda s: not set(s["x"]) & {"e", "o"})
def several_stops(s):
    s += "the quick" + sgl.gen("x", stop=["e", "o"], max_tokens=20)


@case(lambda s: s["x"] == "" and s["y"] is not None)
def no_tokens_at_all(s):
    s += "the quick" + sgl.gen("x", max_tokens=0) + " brown" + sgl.gen("y")


@case(lambda s: s.messages()[0] == {"role": "user", "content": "one two"})
def roles_as_contexts(s):
    with s.user():
        s += "one "
        s += "two"
    with s.assistant():
        s += "so " + sgl.gen("x")


@case(lambda s: s.messages()[1]["content"] == s["x"])
def roles_by_marks(s):
    s += sgl.user_begin() + "one" + sgl.user_end()
    s += sgl.assistant_begin() + sgl.gen("x") + sgl.assistant_end()


@case(lambda s: [m["role"] for m in s.messages()] == ["user", "assistant"])
def turn_without_a_role(s):
    s += sgl.user("say something")
    s += sgl.gen("x")


@case(lambda s: s["outer"] == f"a{s['inner']}c" and s["inner"] == f"b{s['x']}")
def scopes_in_scopes(s):
    with s.var_scope("outer"):
        s += "a"
        with s.var_scope("inner"):
            s += "b" + sgl.gen("x")
        s += "c"


@case(lambda s: s["total"] == 3 and s["names"] == ["a", "b"] and "missing" not in s)
def values_set_by_hand(s):
    s["total"] = 1 + 2
    s.set_var("names", ["a", "b"])
    s += f"total {s['total']}" + sgl.gen("x")


@case(lambda s: s["second"] is not None and s.ret_value.endswith(s["first"]))
def text_as_the_next_prompt(s):
    s += "one:" + sgl.gen("first")
    text = s.text()
    s.sync()
    s += f"again: {text}" + sgl.gen("second")
    return text


@case(lambda s: s.ret_value["prompt_tokens"] > 0)
def meta_information(s):
    s += "the quick" + sgl.gen("x")
    return s.get_meta_info("x")


@case(lambda s: "春天" in s.text() and "🙂" in s.text() and s["pick"] in ("夏天", "冬天快乐"))
def other_scripts(s):
    s += "春天 and 🙂 " + sgl.gen("x", max_tokens=3)
    s += " then " + sgl.select("pick", ["夏天", "冬天快乐"])


@case(lambda s: re.fullmatch("<(春天|夏天)>", s["x"]))
def other_scripts_bound(s):
    s += "season: " + sgl.gen("x", regex="<(春天|夏天)>", max_tokens=24)


@case(lambda s: s["b"] is not None and isinstance(s.ret_value, Exception))
def an_error_handled(s):
    s += "the quick"
    [child] = s.fork(1)
    child += " brown" + sgl.gen("a", temperature=0, schema=list[int], max_tokens=1)
    error = child.error()  # one token is no list
    s += sgl.gen("b")
    return error
