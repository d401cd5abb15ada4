"""The service answers what the model predicts, and refuses bad requests by a sentence."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pyarrow as pa
import pytest

from duogp.serving import Limits, ServedModel, build_app

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")
STREAM = "application/vnd.apache.arrow.stream"


def asked(app, *requests):
    """The responses to requests that are sent together; each is (method, path, keywords)."""

    async def all_of_them():
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with (
            app.state.service.running(),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):
            return await asyncio.gather(*(client.request(m, p, **k) for m, p, k in requests))

    return asyncio.run(all_of_them())


def one(app, method="POST", path="/predict", **given):
    return asked(app, (method, path, given))[0]


@pytest.fixture
def app(regressor):
    return build_app(ServedModel(regressor, name="cities"))


def arrow_body(table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def inputs(table, n=5):
    return table.drop_columns(["y"]).slice(0, n)


@pytest.mark.parametrize("form", ["objects", "lists", "columns", "bare"])
def test_json_is_answered_by_the_models_prediction(app, regressor, table, form):
    X = inputs(table)
    rows = X.to_pylist()
    body = {
        "objects": {"rows": rows},
        "lists": {"rows": [list(row.values()) for row in rows]},
        "columns": {"columns": X.to_pydict()},
        "bare": rows,
    }[form]
    found = one(app, json=body).json()
    mean, std = regressor.predict(X, return_std=True)
    assert found["rows"] == 5 and "notes" not in found
    np.testing.assert_allclose(found["predictions"]["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["predictions"]["std"], std, rtol=1e-12)
    parts = sum(np.array(found["predictions"][p]) for p in ("residual", "explained", "noise", "disagreement"))
    np.testing.assert_allclose(parts, std**2, rtol=1e-12)


def test_quantiles_are_those_of_the_estimator(app, regressor, table):
    X = inputs(table)
    found = one(app, json={"rows": X.to_pylist(), "quantiles": [0.1, 0.9]}).json()["predictions"]
    expected = regressor.predict_quantiles(X, [0.1, 0.9])
    np.testing.assert_allclose(np.stack([found["q0.1"], found["q0.9"]], 1), expected, rtol=1e-12)


def test_arrow_in_arrow_out(app, regressor, table):
    X = inputs(table, 40)
    answer = one(app, content=arrow_body(X), headers={"content-type": STREAM}, params={"quantiles": "0.5"})
    assert answer.status_code == 200 and answer.headers["content-type"] == STREAM
    found = pa.ipc.open_stream(answer.content).read_all()
    np.testing.assert_allclose(found.column("mean").to_numpy(), regressor.predict(X), rtol=1e-12)
    np.testing.assert_allclose(found.column("q0.5").to_numpy(), regressor.predict(X), rtol=1e-9)
    as_json = one(app, content=arrow_body(X), headers={"content-type": STREAM, "accept": "application/json"})
    assert len(as_json.json()["predictions"]["mean"]) == 40


def test_classes_have_labels_and_probabilities(classifier, table):
    app = build_app(ServedModel(classifier))
    X = table.select(["a", "b"]).slice(0, 6)
    found = one(app, json={"rows": X.to_pylist()}).json()["predictions"]
    np.testing.assert_allclose(
        np.stack([found["p_high"], found["p_low"]], 1), classifier.predict_proba(X), rtol=1e-12
    )
    assert found["label"] == classifier.predict(X).tolist()
    refused = one(app, json={"rows": X.to_pylist(), "quantiles": [0.5]})
    assert refused.status_code == 422 and "classes" in refused.json()["error"]


def test_an_unknown_category_widens_the_interval_and_is_noted(app, regressor):
    row = {"a": 0.0, "b": 0.0, "city": "Paris"}
    found = one(app, json={"rows": [row]}).json()
    _, std = regressor.predict(pa.table({k: [v] for k, v in row.items()}), return_std=True)
    assert found["predictions"]["std"][0] == pytest.approx(std[0], rel=1e-12)
    assert found["notes"]["unknown"] == {"city": 1}


def test_requests_together_are_one_batch_with_the_same_answers(app, regressor, table):
    X = inputs(table, 30)
    rows = X.to_pylist()
    pieces = [rows[i : i + 3] for i in range(0, 30, 3)]
    pieces[4][0]["city"] = "Paris"
    requests = [
        ("POST", "/predict", {"json": {"rows": piece, "quantiles": [0.1 + 0.01 * i]}})
        for i, piece in enumerate(pieces)
    ]
    together = [answer.json() for answer in asked(app, *requests)]
    apart = [one(build_app(ServedModel(regressor)), **keywords).json() for *_, keywords in requests]
    for mine, alone in zip(together, apart, strict=True):
        assert mine.keys() == alone.keys()
        for name, values in alone["predictions"].items():
            np.testing.assert_allclose(mine["predictions"][name], values, rtol=1e-9)
    metrics = app.state.service.metrics
    assert metrics.batch_requests == 10 and metrics.batch_rows.count < 10


BAD = {
    "no body": ({"content": b""}, 400, "no body"),
    "no json": ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "no JSON"),
    "nan": (
        {"content": b'{"rows": [[NaN, 1, "x"]]}', "headers": {"content-type": "application/json"}},
        400,
        "null",
    ),
    "deep": (
        {"content": b"[" * 100_000, "headers": {"content-type": "application/json"}},
        400,
        "nested",
    ),
    "a number": ({"json": 3}, 400, "rows"),
    "rows and columns": ({"json": {"rows": [], "columns": {}}}, 400, "rows"),
    "unknown name": ({"json": {"rows": [[1, 2, "x"]], "quantile": 0.5}}, 400, "quantile"),
    "no rows": ({"json": {"rows": []}}, 422, "no rows"),
    "short row": ({"json": {"rows": [[1, 2, "x"], [1]]}}, 422, "row 1"),
    "mixed rows": ({"json": {"rows": [[1, 2, "x"], {"a": 1}]}}, 422, "row 1"),
    "nested value": ({"json": {"rows": [{"a": [1], "b": 1, "city": "Rome"}]}}, 422, "row 0"),
    "text for a number": ({"json": {"rows": [{"a": "x", "b": 1, "city": "Rome"}]}}, 422, "'a'"),
    "text and number": (
        {"json": {"rows": [[None, 2, "x"], [1, 2, "x"], ["big", 2, "x"]]}},
        422,
        "row 2: 'a' is a text (\"big\"), expected a number as in row 1",
    ),
    "number and true": (
        {"json": {"columns": {"a": [1.5, True], "b": [1, 2], "city": ["x", "x"]}}},
        422,
        "row 1: 'a' is true or false (true), expected a number as in row 0",
    ),
    "number as text": ({"json": {"rows": [{"a": "90", "b": 1, "city": "Rome"}]}}, 422, "'a' held numbers"),
    "key lacking in all rows": (
        {"json": {"rows": [{"a": 1, "city": "Rome"}]}},
        422,
        "row 0 lacks the key 'b' (a gap is null)",
    ),
    "key lacking in one row": (
        {"json": {"rows": [{"a": 1, "b": 2, "city": "Rome"}, {"a": 1, "b": 2}]}},
        422,
        "row 1 lacks the key 'city' (a gap is null)",
    ),
    "misspelled key": (
        {"json": {"rows": [{"a": 1, "b": 2, "City ": "Rome"}]}},
        422,
        "row 0 lacks the key 'city' (a gap is null); did you mean 'City '?",
    ),
    "missing column": (
        {"json": {"columns": {"a": [1], "b": [2], "citi": ["Rome"]}}},
        422,
        "lacks the column 'city' (the model); did you mean 'citi'?",
    ),
    "unequal columns": ({"json": {"columns": {"a": [1], "b": [1, 2], "city": ["x"]}}}, 422, "length"),
    "level": ({"json": {"rows": [[1, 2, "x"]], "quantiles": [1.5]}}, 400, "quantiles"),
    "kind": ({"content": b"a,b\n1,2", "headers": {"content-type": "text/csv"}}, 415, "text/csv"),
    "no arrow": ({"content": b"ARROW1garbage", "headers": {"content-type": STREAM}}, 400, "Arrow"),
    "huge number": ({"json": {"rows": [[1, 2, "x"], [10**400, 2, "x"]]}}, 422, "row 1: 'a'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_are_refused_by_a_sentence(app, case):
    given, status, word = BAD[case]
    answer = one(app, **given)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"] and "Traceback" not in answer.text


def test_null_is_a_gap_and_further_keys_are_not_read(app, regressor):
    rows = [{"a": 0.5, "b": None, "city": None}, {"a": 2, "b": 2**64, "city": "Rome", "note": [1], "y": "?"}]
    found = one(app, json={"rows": rows})
    expected = regressor.predict(pa.table({"a": [0.5, 2.0], "b": [None, 2.0**64], "city": [None, "Rome"]}))
    assert found.status_code == 200, found.text
    np.testing.assert_allclose(found.json()["predictions"]["mean"], expected, rtol=1e-12)
    assert found.json()["notes"]["unknown"] == {"b": 1, "city": 1}
    columns = {name: [row[name] for row in rows] for name in ("a", "b", "city")} | {"note": [{}, None]}
    assert one(app, json={"columns": columns}).json() == found.json()


def test_limits_of_rows_bytes_and_waiting(regressor, table):
    app = build_app(ServedModel(regressor), Limits(rows=3, bytes=2000))
    rows = inputs(table, 4).to_pylist()
    assert one(app, json={"rows": rows}).status_code == 413
    long = one(app, content=b" " * 3000, headers={"content-type": "application/json"})
    assert long.status_code == 413 and "2,000 bytes" in long.json()["error"]
    assert one(app, json={"rows": rows[:3]}).status_code == 200
    crowded = build_app(ServedModel(regressor), Limits(waiting=4))
    request = ("POST", "/predict", {"json": {"rows": rows[:3]}})
    statuses = sorted(answer.status_code for answer in asked(crowded, *[request] * 8))
    assert set(statuses) <= {200, 503} and statuses[0] == 200


def test_paths_methods_health_and_metrics(app, table):
    assert one(app, "GET", "/predict").status_code == 405
    assert one(app, "GET", "/nothing").status_code == 404
    health = one(app, "GET", "/health")
    assert health.json()["status"] == "ok"
    assert health.json()["columns"] == {"a": "number", "b": "number", "city": "category"}
    body = {"json": {"rows": inputs(table).to_pylist()}}
    one(app, **body)
    text = one(app, "GET", "/metrics").text
    assert 'duogp_requests_total{path="/predict",status="200"} 1' in text
    assert "duogp_rows_total 5" in text
    assert 'duogp_request_seconds_bucket{le="+Inf"} 2' in text  # the refused one is counted too
    app.state.service.stopping = True
    stopping = one(app, "GET", "/health")
    assert stopping.status_code == 503 and stopping.json()["status"] == "stopping"
    assert one(app, **body).headers["connection"] == "close"


def test_a_failure_of_the_model_is_no_traceback_and_hurts_no_other(app, table, monkeypatch, caplog):
    served = app.state.service.model
    whole = served.predict

    def fails(batch):
        if any(len(rows) == 2 for rows in batch):
            raise RuntimeError("secret detail")
        return whole(batch)

    monkeypatch.setattr(served, "predict", fails)
    rows = inputs(table).to_pylist()
    requests = [("POST", "/predict", {"json": {"rows": rows[:k]}}) for k in (1, 2, 3)]
    good, bad, other = asked(app, *requests)
    assert good.status_code == other.status_code == 200
    assert bad.status_code == 500 and "secret" not in bad.text and "Traceback" not in bad.text
    assert "secret detail" in caplog.text


def test_a_model_without_a_schema_takes_numbers(table):
    from duogp import fit

    X = np.column_stack([table.column(name).to_numpy() for name in ("a", "b")])
    gp = fit(X, np.column_stack([X[:, 0], X[:, 1]]), "svgp", num_inducing=6, epochs=2)
    app = build_app(ServedModel(gp))
    found = one(app, json={"rows": X[:3].tolist(), "quantiles": [0.5]}).json()["predictions"]
    np.testing.assert_allclose(found["mean_1"], gp.predict(X[:3]).mean[:, 1], rtol=1e-12)
    assert {"q0.5_0", "q0.5_1", "std_0"} <= found.keys()
    assert one(app, json={"rows": [[1.0, None]]}).status_code == 422
    assert "x1" in one(app, json={"rows": [{"x0": 1.0}]}).json()["error"]


def test_limits_must_be_positive():
    with pytest.raises(ValueError, match="rows must be positive"):
        Limits(rows=0)
    assert json.dumps(Limits().__dict__)
