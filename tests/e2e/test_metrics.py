"""/metrics of a served model: it counts what the replies said, and the dashboard fits it."""

from __future__ import annotations

import json
import pathlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.test_engine import prompt_of
from tests.e2e.test_process import wait_until
from tests.e2e.test_serve import Server, post

DASHBOARD = pathlib.Path(__file__).parents[2] / "examples/monitoring/dashboard.json"
SHORT = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("metrics")
    warm = folder / "warm.jsonl"
    warm.write_text('"the quick brown fox jumps over the lazy dog"\n')
    running = Server(tiny_model, folder / "log", "--warm", str(warm))
    try:
        yield running.wait_ready()
    finally:
        running.stop()


def scrape(server: Server) -> dict[str, float]:
    """Sums by sample name, and by name{label=value} for outcome, cause, state and status."""
    response = httpx.get(f"{server.url}/metrics", timeout=10)
    assert response.status_code == 200
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            name = sample.name.removeprefix("radixserve_")
            names = [name, *(f"{name}{{{v}}}" for k, v in sample.labels.items() if k != "le")]
            for each in names:
                found[each] = found.get(each, 0) + sample.value
    return found


class Since:
    """What grew since it was made; every counter must."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = scrape(server)

    def __call__(self, name: str) -> float:
        now = scrape(self._server)
        fallen = [n for n, v in self._before.items() if "_total" in n and now.get(n, 0) < v]
        assert fallen == []
        return now.get(name, 0) - self._before.get(name, 0)


def test_what_the_server_does_for_itself_is_not_counted(server: Server) -> None:
    """Warm prompts have been computed, for nobody."""
    assert server.info()["computed_tokens"] > 0
    seen = scrape(server)
    assert seen["engine_steps_total"] > 0
    assert not [name for name in seen if name.startswith(("prompt_tokens", "requests_total"))]


def test_o06_counters_are_the_sums_of_usages(server: Server) -> None:
    grown = Since(server)
    ids = prompt_of(40, 3)
    metas = [
        post(server, "/generate", input_ids=ids, sampling_params=SHORT).json()["meta_info"]
        for _ in range(10)
    ]
    metas.append(
        post(server, "/generate", input_ids=prompt_of(33, 8), sampling_params=SHORT).json()[
            "meta_info"
        ]
    )
    usages = []
    for body in ({"n": 3}, {"prompt": ["the quick", "brown fox jumps"], "n": 2}, {}):
        reply = post(
            server, "/v1/completions",
            **({"prompt": "the quick brown", "max_tokens": 5, "ignore_eos": True} | body),
        )  # fmt: skip
        usages.append(reply.json()["usage"])
    assert post(server, "/v1/completions", prompt="x", temperature=-1).status_code == 400
    assert post(server, "/v1/completions", prompt=[]).status_code == 400
    prompt = sum(m["prompt_tokens"] for m in metas) + sum(u["prompt_tokens"] for u in usages)
    cached = sum(m["cached_tokens"] for m in metas)
    cached += sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
    made = sum(m["completion_tokens"] for m in metas)
    made += sum(u["completion_tokens"] for u in usages)
    assert grown("prompt_tokens_total") == prompt
    assert grown("cached_tokens_total") == cached
    assert cached >= 9 * 39
    assert grown("generation_tokens_total") == made
    assert grown("time_to_first_token_seconds_count") == len(metas) + 4
    assert grown("e2e_request_latency_seconds_count") == len(metas) + 4
    assert grown("requests_total{length}") == grown("requests_total") == len(metas) + 4
    assert grown("http_responses_total{400}") == 2
    wait_until(lambda: scrape(server)["num_requests_running"] == 0)
    seen = scrape(server)
    assert (seen["num_requests_waiting"], seen["requests_in_flight"]) == (0, 0)
    assert seen["kv_tokens{locked}"] == 0
    assert seen["kv_tokens"] == seen["kv_capacity_tokens"]


def test_o06_aborted_requests_count_what_they_took(server: Server) -> None:
    """Aborted by rid, and left by their clients: what the engine made is counted to the token."""
    grown = Since(server)
    engine_before = server.info()["generated_tokens"]
    long = {"max_new_tokens": 6000, "ignore_eos": True}

    def aborted(k: int) -> int:
        reply = post(server, "/generate", text=f"abort {k}", rid=f"a{k}", sampling_params=long)
        return int(reply.json()["meta_info"]["completion_tokens"])

    with ThreadPoolExecutor(5) as pool:
        calls = [pool.submit(aborted, k) for k in range(5)]
        wait_until(lambda: scrape(server)["num_requests_running"] == 5)
        for k in range(5):
            post(server, "/abort_request", rid=f"a{k}")
        told = sum(call.result(20) for call in calls)
    assert grown("aborts_total{request}") == 5
    assert grown("generation_tokens_total") == told
    body = json.dumps({"text": "gone", "stream": True, "sampling_params": long}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        assert b"200" in connection.recv(256)
    wait_until(lambda: grown("aborts_total{client}") == 1)
    assert grown("requests_total{abort}") == 6
    assert grown("generation_tokens_total") == server.info()["generated_tokens"] - engine_before


def test_probes_are_not_in_the_metrics(server: Server) -> None:
    grown = Since(server)
    assert httpx.get(f"{server.url}/health_generate", timeout=20).status_code == 200
    assert grown("requests_total") == 0
    assert grown("prompt_tokens_total") == 0


def test_a_wait_in_the_queue_is_seen(server: Server) -> None:
    """64 run at once; the last 136 of 200 wait for a slot."""
    grown = Since(server)
    stop = threading.Event()
    most = 0.0

    def watch() -> None:
        nonlocal most
        while not stop.is_set():
            most = max(most, scrape(server)["num_requests_waiting"])
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    params = SHORT | {"max_new_tokens": 150}
    prompts = [f"wait {k}" for k in range(200)]
    reply = post(server, "/generate", text=prompts, sampling_params=params)
    stop.set()
    watcher.join()
    assert reply.status_code == 200
    assert most > 0
    assert grown("request_queue_time_seconds_count") == 200
    assert grown("request_queue_time_seconds_sum") > 136 * 0.05


def names_in(query: str) -> set[str]:
    return set(re.findall(r"\bradixserve_\w+", query))


def test_the_dashboard_asks_for_metrics_that_exist(server: Server) -> None:
    text = httpx.get(f"{server.url}/metrics", timeout=10).text
    families = list(text_string_to_metric_families(text))
    samples = {sample.name for family in families for sample in family.samples}
    labels = {key for family in families for sample in family.samples for key in sample.labels}
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    assert len(queries) > 25
    assert {name for query in queries for name in names_in(query)} - samples == set()
    assert all(names_in(query) for query in queries)
    grouped = {
        each for q in queries for by in re.findall(r"by \((.*?)\)", q) for each in by.split()
    }
    assert grouped - labels == set()


def test_every_metric_stands_in_the_dashboard(server: Server) -> None:
    text = httpx.get(f"{server.url}/metrics", timeout=10).text
    shown = names_in(DASHBOARD.read_text())
    stems = {re.sub(r"_(total|bucket)$", "", name) for name in shown}
    assert {family.name for family in text_string_to_metric_families(text)} - stems == set()
